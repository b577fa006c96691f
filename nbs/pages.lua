-- What a page gets between its notebook and Quarto: anchors where a name is defined, folds that say
-- what is in them, readable tables, captions below drawings, the places where a lesson runs, terms that
-- lead to the glossary, and one link at its end.
if not quarto.doc.is_format('html') then return {} end

local REPO = 'https://github.com/elmo-fastai/elmo_fastai'
local file = pandoc.path.make_relative(quarto.doc.input_file, quarto.project.directory)
local lesson, library = file:match('^course/(%d%d)_'), file:match('^library/')
local text = pandoc.utils.stringify
local function html(s) return pandoc.RawBlock('html', s) end

local ROOM = 40       -- characters from which a cell keeps the width of some words on a phone
local LONG = 12       -- rows of a table that a study shows; what is longer is folded
local depth = 0       -- of the folds around a block

-- a mean and its error with equally many decimals
local function even(s)
  local mean, half = s:match('^([-+−]?[%d.,]+) ± ([%d.]+)$')
  if not mean then return s end
  local places = #(mean:match('%.(%d+)$') or '')
  return ('%s\u{a0}±\u{a0}%s'):format(mean, tonumber(half) and (('%%.%df'):format(places)):format(half) or half)
end

-- the numbers of a table of one row with equally many decimals: pandas counts them by column
local function one_row(cells)
  local function places(cell) return #(text(cell.contents):match('^-?%d+%.(%d+)$') or '') end
  local most = math.max(0, table.unpack(cells:map(places)))
  for _, cell in ipairs(cells) do
    local n = places(cell)
    if n > 0 and n < most then cell.contents = {pandoc.Plain{pandoc.Str(text(cell.contents) .. ('0'):rep(most - n))}} end
  end
end

local function is_number(s)
  s = s:gsub('\u{a0}±\u{a0}[%d.]+$', '')
  s = s:gsub('[−–—]+', '-'):gsub('[×%%]', ''):gsub('[\u{202f}\u{a0} ,]', '')        -- of these signs each byte
  return s == '' or s == '-' or s == 'nan' or s:match('^[-+]?%d[%d.]*[eE]?[-+]?%d*[kMG]?[ms]?B?$')
end

local function Table(t)
  local rows, numbers = pandoc.List(), {}
  for _, body in ipairs(t.bodies) do
    rows:extend(body.body)
    local first = body.body[1] and body.body[1].cells[1]
    if first and first.attributes['quarto-table-cell-role'] == 'th' then body.row_head_columns = 1 end
  end
  if #rows == 1 and t.attr.classes:includes('dataframe') then one_row(rows[1].cells) end
  for i in ipairs(t.colspecs) do numbers[i] = #rows > 0 end
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row.cells) do
      local said = even(text(cell.contents))
      if said:find('±', 1, true) and said:find('^[-+−%d]') then cell.contents = {pandoc.Plain{pandoc.Str(said)}} end
      numbers[i] = numbers[i] and is_number(said)
      if utf8.len(said) >= ROOM then cell.attr.classes:insert('text') end
    end
  end
  for i, spec in ipairs(t.colspecs) do if numbers[i] then spec[1] = 'AlignRight' end end
  if depth > 0 or #rows <= LONG or not file:match('^studies/') then return t end
  local names = pandoc.List()
  for _, row in ipairs(t.head.rows) do names:extend(row.cells:map(function(c) return text(c.contents) end)) end
  names = names:filter(function(o) return o ~= '' end)
  local said = table.concat(names, ', ', 1, math.min(4, #names)) .. (#names > 4 and ' …' or '')
  local summary = ('Show the table: %d rows, columns %s'):format(#rows, said)
  return {html('<details class="long"><summary>' .. summary .. '</summary>'), t, html('</details>')}
end

local function RawBlock(o)
  for close in o.text:gmatch('<(/?)details') do depth = depth + (close == '' and 1 or -1) end
end

local function Image(o)        -- a picture is described by its caption where nothing else does
  local said = text(o.caption)
  if said ~= '' and not o.attributes['fig-alt'] then o.attributes['fig-alt'] = said end
  return o
end

-- the names that code defines, a method with its class
local function defined(code)
  local names = pandoc.List()
  for at in code:gmatch('()[^\n]+') do
    local rest = code:sub(at)
    local method, class = rest:match('^@patch[^\n]*\ndef ([%w_]+)%(%s*[%w_]+%s*:%s*([%w_]+)')
    local name = method and class .. '.' .. method or rest:match('^class ([%w_]+)')
      or rest:match('^def ([%w_]+)') or rest:match('^([A-Z][%w_]+) *=[^=]')
    if name and not names:find_if(function(o) return o:match('%.' .. name .. '$') end) then names:insert(name) end
  end
  return names
end

local SCREEN = 20     -- lines of exported code that stand open in a lesson
local taken = {}      -- anchors

local function Header(o) taken[o.identifier] = true end

-- the anchors of exported names, where nbdev has not documented them, and a fold that says what is in it
local function CodeBlock(o)
  o.text = o.text:gsub('\n[^\n]*dtype: %w+%s*$', '')          -- the last line of a printed series
  local fold, exported = o.attributes['code-fold'], o.attributes['code-summary'] == 'Exported source'
  if not fold or fold == 'false' then return o end
  local names, res, _, n = defined(o.text), pandoc.List(), o.text:gsub('\n', '')
  local said = names:map(function(name) return '`' .. name .. '`' end)
  o.attributes['code-summary'] = (exported and 'Source' or 'Code') .. (#names > 0 and ' of ' or '')
    .. table.concat(said, ', ', 1, math.min(3, #names)) .. (#names > 3 and ' …' or '') .. (', %d lines'):format(n + 1)
  o.attributes['code-fold'] = exported and n < SCREEN and not library and 'false' or 'true'
  if exported and not library then
    for _, name in ipairs(names:map(string.lower)) do
      if not taken[name] then res:insert(html(('<span id="%s" class="definition"></span>'):format(name))) end
      taken[name] = true
    end
  end
  return res .. {o}
end

-- The first use of a term in a lesson or study says its definition on hover and leads to the glossary; but
-- words that often mean something else.
local COMMON = ' ELMo agreement attention box carry cell cold direction floor gate gold head leak mask mix '
  .. 'occurrence process purity rank sense shard stream target transform type window '
local terms = {}
local function anchor(name) return 'term-' .. name:lower():gsub('[^%w]+', '-') end

if file:match('^course/') or file:match('^studies/') then
  local all = io.open(pandoc.path.join{quarto.project.directory, 'glossary.ipynb'}):read('a')
  for _, cell in ipairs(quarto.json.decode(all).cells) do
    local source = type(cell.source) == 'table' and table.concat(cell.source) or cell.source
    for names, said in source:gmatch('%- %*%*([^`\n]-)%*%*: ([^\n]+)') do
      said = said:gsub('%. %[.*$', '.'):gsub('%[(.-)%]%b()', '%1'):gsub('[*`]', '')
      local term = {id = anchor(names), said = said}
      for name in (names .. ', '):gmatch('(%a.-), ') do
        if not COMMON:find(' ' .. name .. ' ', 1, true) then terms[name:lower()] = term end
      end
    end
  end
end

local function Para(o)
  local all, i = o.content, 0
  while i < #all do
    i = i + 1
    for n = 5, 1, -2 do                                       -- words, and spaces between them
      local part = pandoc.Inlines{table.unpack(all, i, math.min(i + n - 1, #all))}
      local other = part:find_if(function(x) return x.t ~= 'Str' and x.t ~= 'Space' end)
      local said, stop = text(part):gsub('’', "'"):match('^(.-)([.,;:!?]*)$')
      local term = not other and #part == n and (terms[said:lower()] or terms[said:lower():gsub('s$', '')])
      if term and not term.used then
        term.used = true
        for _ = 1, n do all:remove(i) end
        all:insert(i, pandoc.Str(stop))
        all:insert(i, pandoc.Link(said, '../glossary.ipynb#' .. term.id, term.said, {class = 'elmo-term'}))
        break
      end
    end
  end
  return o
end

local function BulletList(o)        -- the glossary's own lines
  for _, item in ipairs(file == 'glossary.ipynb' and o.content or {}) do
    local first = item[1].content and item[1].content[1]
    if first and first.t == 'Strong' then item[1].content[1] = pandoc.Span(first, {id = anchor(text(first))}) end
  end
  return o
end

-- the line in italics below a drawing is its caption; its description stays with the picture
local function Blocks(blocks)
  for i = #blocks, 2, -1 do
    local line, figure = blocks[i], blocks[i-1]
    if line.t == 'Para' and #line.content == 1 and line.content[1].t == 'Emph' and figure.t == 'Figure' then
      figure.caption.long = {pandoc.Plain(line.content[1].content)}
      blocks:remove(i)
    end
  end
  return blocks
end

local function is_fold(o)
  return o.t == 'RawBlock' and (o.text:match('^</?details') or o.text:match('^</?summary'))
    or o.t == 'Plain' and text(o):match('^Answer')
end

local function Pandoc(doc)
  local blocks, inside = pandoc.List(), false
  if lesson then
    local name = REPO:match('com/(.*)')
    blocks:insert(html(('<p class="elmo-run"><a href="https://colab.research.google.com/github/%s/blob/main/nbs/%s">Run in Colab</a>'
      .. '<a href="https://codespaces.new/%s">Open a Codespace</a><a href="%s/raw/main/nbs/%s">Download the notebook</a></p>'
      ):format(name, file, name, REPO, file)))
    doc.meta.title = {pandoc.Span(lesson, {class = 'chapter-number'}), pandoc.Space(), table.unpack(doc.meta.title)}
    doc = doc:walk({Link = function(o) if o.target:match('^https://colab') then return {} end end})
  end
  for _, o in ipairs(doc.blocks) do
    if inside and o.t == 'Header' and o.level <= 2 then
      inside = false
      blocks:insert(html('</details>'))
    end
    local turn = o.t == 'Para' and text(o):match('^Previous: ')      -- Quarto has its own links for that
    if not (turn or inside and is_fold(o)) then blocks:insert(o) end
    if o.t == 'Header' and o.level == 2 and o.identifier == 'solutions' then
      inside = true
      blocks:insert(html('<details class="solutions"><summary>Show the solutions</summary>'))
    end
  end
  if inside then blocks:insert(html('</details>')) end
  local page = file:gsub('%.%w+$', ''):gsub('/', '%%2F')        -- into the first field of the form
  blocks:insert(html(('<p class="elmo-ask">Something unclear, or wrong? <a href="%s/issues/new?template=chapter.yml&amp;chapter=%s">'
    .. 'Ask or correct</a></p>'):format(REPO, page)))
  doc.blocks = blocks
  return doc:walk({Para = Para, BulletList = BulletList}):walk({traverse = 'topdown', Table = Table, RawBlock = RawBlock})
end

return {{Header = Header, Image = Image}, {CodeBlock = CodeBlock, Blocks = Blocks}, {Pandoc = Pandoc}}
