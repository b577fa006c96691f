// The pictures of the explainer, as SVG as wide as the screen allows, so that their words stay legible.

export const BLUE = '#1f77b4', ORANGE = '#e06c00', GREEN = '#2ca02c', GREY = '#7a8594';
const SENSES = [BLUE, ORANGE, GREEN, '#9467bd'];

// An element with its text, its attributes, what it answers to (on…), and what it holds.
function fill(element, {text, ...attributes} = {}, children) {
  for (const [k, v] of Object.entries(attributes)) {
    if (k.startsWith('on')) element.addEventListener(k.slice(2), v);
    else element.setAttribute(k, v);
  }
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}
export const tag = (name, attributes, ...children) =>
  fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) =>
  fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);

const picture = (width, height, label, ...children) => svg('svg', {width, height, role: 'img',
  viewBox: `0 0 ${width} ${height}`, 'aria-label': label, 'font-size': 13}, ...children);
const label = (x, y, text, more) => svg('text', {x, y, fill: 'currentColor', text, ...more});
const box = (x, y, width, height, fill, more) =>
  svg('rect', {x, y, width: Math.max(0, width), height: Math.max(0, height), fill, ...more});
const strong = on => ({'font-weight': on ? 700 : 400});
export const cut = (text, most) => {
  const letters = [...text];
  return letters.length > most ? letters.slice(0, most - 1).join('') + '…' : text;
};
export const clamp = (v, low, high) => Math.min(Math.max(v, low), high);

// Numbers as cells, side by side or one below the other: the deeper, the further from zero; grey
// below zero.
function strip(values, x, y, width, height, colour, full, down) {
  const n = values.length, w = down ? width : width / n, h = down ? height / n : height;
  return svg('g', {}, ...values.map((v, i) => box(down ? x : x + i * w, down ? y + i * h : y, w, h,
    v > 0 ? colour : GREY, {opacity: Math.min(1, Math.abs(v) / full).toFixed(2)})));
}

// ---- the whole of it ----------------------------------------------------------------------

const STORIES = [      // from the top: its name, its colours, and the view of a part or views of several
  ['', [], {senses: 'senses', map: 'word by word', influence: 'what moved it'}],
  ['mix', [GREEN], {mix: 'a mix of all layers for each word'}],
  ['guesses', [], {readers: 'two readers', write: 'let it write'}],
  ['layer 2', [BLUE, ORANGE], {directions: 'layer 2 in both directions'}],
  ['layer 1', [BLUE, ORANGE], {directions: 'layer 1 in both directions'}],
  ['letters', [GREEN], {letters: 'letters, filters and highway'}]];

// ELMo with the words of a sentence, as many as there is room for around the chosen one. Each part is
// a link; `to` says where to.
export function drawElmo({words, t, width, to, choose}) {
  const side = 66, n = Math.min(words.length, Math.floor((width - side) / 68));
  const from = clamp(t - Math.floor(n / 2), 0, words.length - n), column = (width - side) / n;
  const some = [...Array(n).keys()].map(i => ({i: from + i, x: side + (i + .5) * column}));
  const parts = [], gap = 8;
  let y = 1;
  for (const [name, colours, views] of STORIES) {
    const all = Object.entries(views).filter(([panel]) => to(panel)), chips = !colours.length;
    const tall = chips ? 30 : 14 + 22 * colours.length, left = chips && name ? side : 0;
    const wide = (width - left) / all.length, top = y;
    if (chips && name) parts.push(label(8, y + 20, name));
    all.forEach(([panel, text], k) => parts.push(svg('a', {href: to(panel), 'aria-label': text},
      box(left + k * wide + 1, top, wide - 2, tall, 'currentColor', {rx: 6, class: 'elmo-part'}),
      label(chips ? left + (k + .5) * wide : 8, top + tall / 2 + 5, chips ? text : name,
        chips ? {'text-anchor': 'middle'} : {}),
      ...colours.flatMap((colour, c) => some.flatMap(({i, x}) => [
        box(x - column / 2 + 4, top + 8 + 22 * c, column - 8, 18, colour,
          {rx: 4, opacity: i === t ? 1 : .4}),
        colours.length > 1 ? label(x, top + 22 + 22 * c, '→←'[c], {'text-anchor': 'middle'}) : ''])))));
    y += tall + gap;
    some.forEach(({x}) => { if (name) parts.push(box(x - 1, y - gap, 2, gap, GREY)); });
  }
  some.forEach(({i, x}, k) => parts.push(label(x, y + 14, (k || !from ? '' : '… ') + cut(words[i], 9)
    + (k === n - 1 && i < words.length - 1 ? ' …' : ''), {'text-anchor': 'middle', class: 'elmo-pick',
    onclick: () => choose(i), ...strong(i === t)})));
  const image = picture(width, y + 22, 'ELMo and this sentence: each part leads to its view', ...parts);
  image.setAttribute('role', 'group');
  return image;
}

// ---- every word with every word -----------------------------------------------------------

// `words` of all sentences, `me` the chosen one, `pairs` the cells that are framed. The picture, and
// a function that colours it by the cosine of words i and j.
export function drawMap({words, me, pairs, width, choose}) {
  const space = 78, gap = 4, n = words.length;
  const size = clamp((Math.min(width, 520) - space - 3 * gap) / n, 15, 26);
  const at = i => space + i * size + gap * words[i].s;
  const cells = words.flatMap((a, i) => words.map((b, j) => {
    const cell = box(at(j), at(i), size - 1, size - 1, GREEN, {onclick: () => choose(a.s, a.t)});
    cell.append(svg('title'));
    return {i, j, cell};
  }));
  const names = words.flatMap(({word}, i) => {
    const more = {'font-size': Math.min(13, size - 1), ...strong(i === me)}, text = cut(word, 10);
    return [label(space - 6, at(i) + .72 * size, text, {...more, 'text-anchor': 'end'}),
      label(0, 0, text, {...more, transform: `translate(${at(i) + .72 * size},${space - 6}) rotate(-60)`})];
  });
  const frames = pairs.map(i => box(at(i) - 1, at(me) - 1, size + 1, size + 1, 'none',
    {stroke: 'currentColor', 'stroke-width': 2, 'pointer-events': 'none'}));
  const side = at(n - 1) + size + 12;
  const image = picture(side, side, 'Cosines of every word with every word: the deeper, the more alike',
    ...cells.map(o => o.cell), ...names, ...frames);
  const colour = cosine => cells.forEach(({i, j, cell}) => {
    const c = cosine(i, j);
    cell.setAttribute('fill-opacity', clamp(c, .03, 1).toFixed(2));
    cell.firstChild.textContent = `${words[i].word} – ${words[j].word}: ${c.toFixed(2)}`;
  });
  return {image, colour};
}

// ---- senses -------------------------------------------------------------------------------

// Dots for the stored occurrences, numbers for the reader's; `were` keeps where these stood, so that
// they glide to their new places. `read` shows the sentence of a dot. `names` stand beside the
// reader's dots; the sentence `mine` is the one that is typed.
export function drawSenses({word, dots, yours}, {width, were, read, names = [], mine}) {
  const height = Math.round(clamp(width * .62, 240, 400)), pad = 26;
  const share = (k, v) => {
    const all = dots.map(o => o.at[k]), least = Math.min(...all);
    return clamp((v - least) / (Math.max(...all) - least || 1), -.02, 1.02);
  };
  const x = v => pad + share(0, v) * (width - 2 * pad);
  const y = v => height - pad - share(1, v) * (height - 2 * pad - 20);
  const kinds = [...new Set(dots.map(o => o.sense))].sort();
  const colour = sense => sense ? SENSES[kinds.indexOf(sense) % SENSES.length] : GREY;
  const small = dots.map(o => svg('circle', {cx: x(o.at[0]), cy: y(o.at[1]), r: 6, opacity: .8,
    fill: colour(o.sense), onpointerenter: () => read(o), onclick: () => read(o)}, svg('title', {text: o.text})));
  const lines = [];                        // heights at which names stand
  const large = yours.map(({s, t, at}, i) => {
    const to = `translate(${x(at[0])}px, ${y(at[1])}px)`;
    const key = `${word} ${s} ${yours.filter(o => o.s === s && o.t < t).length}`;
    const dot = svg('g', {class: s === mine ? 'elmo-glide mine' : 'elmo-glide'},
      svg('circle', {r: 12, fill: 'currentColor'}),
      svg('text', {y: 5, 'text-anchor': 'middle', class: 'elmo-number', text: s + 1}));
    if (names[i]) {
      let high = y(at[1]);
      while (lines.some(o => Math.abs(o - high) < 20)) high += high < height / 2 ? -4 : 4;
      lines.push(high);
      const left = x(at[0]) > width / 2;
      dot.append(label(left ? -18 : 18, high - y(at[1]) + 5, names[i],
        {class: 'elmo-name', 'text-anchor': left ? 'end' : 'start', ...strong(s === mine)}));
    }
    dot.style.transform = were[key] || to;
    requestAnimationFrame(() => requestAnimationFrame(() => { dot.style.transform = to; }));
    were[key] = to;
    return dot;
  });
  const legend = kinds.map((sense, i) => svg('g', {},
    svg('circle', {cx: 10 + i * 110, cy: 10, r: 6, fill: colour(sense)}),
    label(20 + i * 110, 15, sense?.split('/')[1] || 'not labelled')));
  return picture(width, height, `${dots.length} occurrences and yours, in two directions`,
    ...legend, ...small, ...large);
}

// ---- two readers --------------------------------------------------------------------------

// Three lists of guesses, then each word between what it costs from the left and from the right.
export function drawReaders({left, right, both, nats}, {t, width, choose}) {
  const third = width / 3, row = 22, top = 24, from = top + 5 * row + 44, middle = width / 2, room = 62;
  const lists = [['from the left', left, BLUE], ['from both', both, GREEN], ['from the right', right, ORANGE]];
  const guesses = lists.flatMap(([name, list, colour], c) => [
    label(c * third, 13, name, {'font-weight': 700}),
    ...list.flatMap(({word, p}, i) => [
      box(c * third, top + i * row, p * (third - 8), row - 4, colour, {class: 'elmo-grow', opacity: .45}),
      label(c * third + 4, top + i * row + 14, `${cut(word, 11)} ${p.toFixed(2)}`)])]);
  const side = (v, sign, colour, y) => {
    const long = Math.min(v / 12, 1) * (middle - room - 40), x = middle + sign * room;
    return [box(sign < 0 ? x - long : x, y, long, row - 6, colour, {class: 'elmo-grow'}),
      label(x + sign * (long + 5), y + 12, v.toFixed(1), {'text-anchor': sign < 0 ? 'end' : 'start'})];
  };
  const words = nats.flatMap((o, i) => {
    const y = from + i * row;
    return [...side(o.left, -1, BLUE, y), ...side(o.right, 1, ORANGE, y),
      label(middle, y + 12, cut(o.word, 13) + (o.known ? '' : ' ?'), {'text-anchor': 'middle',
        class: 'elmo-pick', onclick: () => choose(i), ...strong(i === t)})];
  });
  return picture(width, from + nats.length * row, 'Guesses for the gap, and the surprise of each word',
    ...guesses, label(middle, from - 12, 'surprise in nats: from the left, from the right',
      {'text-anchor': 'middle', 'font-weight': 700}), ...words);
}

// ---- influence, and what comes next -------------------------------------------------------

// A name, a bar and a number below each other.
const rows = (all, width, colour) => all.flatMap(({name, value, share, strong: on, more}, i) => [
  label(120, i * 22 + 14, name, {'text-anchor': 'end', ...strong(on), ...more}),
  box(128, i * 22, clamp(share, 0, 1) * (width - 176), 17, colour, {class: 'elmo-grow'}),
  label(134 + clamp(share, 0, 1) * (width - 176), i * 22 + 14, value)]);

export function drawInfluence(changes, {words, t, width, choose}) {
  const most = Math.max(.1, ...changes);
  const all = words.map((word, i) => ({name: cut(word, 15), share: i === t ? 0 : changes[i] / most,
    value: i === t ? 'the chosen word' : changes[i].toFixed(2), strong: i === t,
    more: {class: 'elmo-pick', onclick: () => choose(i)}}));
  return picture(width, 22 * words.length, 'How much each word moved the vector of the chosen one',
    ...rows(all, width, GREEN));
}

export function drawNext(best, {width}) {
  const all = best.map(({word, p}) => ({name: cut(word, 15), share: p, value: p.toFixed(2)}));
  return picture(width, 22 * best.length, 'The likeliest next words', ...rows(all, width, BLUE));
}

// ---- inside -------------------------------------------------------------------------------

// The letters of the chosen word, the filters that fit best, the pieces that these like, the highway.
export function drawLetters(answer, {likes, width}) {
  const {letters, filters, features, highway} = answer, side = 118, line = 20, first = 52;
  const n = letters.length, cell = Math.min(34, (width - side - 34) / n);
  const spelled = letters.flatMap((letter, i) => [
    box(side + i * cell, 20, cell - 2, 24, 'none', {stroke: GREY}),
    label(side + (i + .45) * cell, 37, letter, {'text-anchor': 'middle'})]);
  const fired = filters.flatMap(({k, width: wide, place, fit}, i) => [
    label(0, first + i * line + 12, likes[k]),
    box(side + place * cell, first + i * line, Math.min(wide, n - place) * cell - 2, line - 4, GREEN,
      {opacity: clamp(fit / 3, .2, 1), class: 'elmo-grow'}),
    label(side + n * cell + 4, first + i * line + 12, fit.toFixed(1))]);
  const high = first + filters.length * line + 26;
  return picture(width, high + 34, 'Letters, filters and highway',
    label(0, 13, 'a filter likes', {'font-weight': 700}), label(side, 13,
      `where it fits: the best 8 of ${answer.n}`, {'font-weight': 700}), ...spelled, ...fired,
    label(0, high - 6, 'highway: above what comes in, below what goes out', {'font-weight': 700}),
    strip(features, 0, high, width, 14, GREEN, 2), strip(highway, 0, high + 16, width, 14, GREEN, 2));
}

const SIDES = [[0, BLUE, '→'], [1, ORANGE, '←']];

// The states of both directions in the sentence. The picture, and a function that shows what both
// have read after some steps.
export function drawDirections(states, {words, t, width}) {
  const column = (width - 54) / words.length, tall = 44;
  const groups = states.flatMap((sides, l) => SIDES.flatMap(([d, colour, arrow]) => {
    const y = (2 * l + d) * (tall + 6);
    return [{shown: () => true, mark: label(0, y + 26, `${l + 1} ${arrow}`)},
      ...sides[d].map((state, i) => ({shown: step => d ? words.length - 1 - i < step : i < step,
        mark: strip(state, 54 + i * column, y, column - 2, tall, colour, .6, true)}))];
  }));
  const below = 2 * states.length * (tall + 6) + 8;
  const names = words.map((word, i) => label(0, 0, cut(word, 12), {...strong(i === t),
    transform: `translate(${54 + (i + .5) * column},${below}) rotate(35)`}));
  const image = picture(width, below + 66, 'The states of two directions in layers 1 and 2',
    ...groups.map(o => o.mark), ...names);
  const show = step => groups.forEach(o => o.mark.setAttribute('opacity', o.shown(step) ? 1 : .08));
  return {image, show};
}

// The three layers of the chosen word, and below them their mix.
export function drawMix(layers, s, gamma, width) {
  const mix = layers[0].map((_, d) => gamma * layers.reduce((sum, layer, l) => sum + s[l] * layer[d], 0));
  const rows = [...layers.map((layer, l) => [`layer ${l}`, layer]), ['mix', mix]];
  return picture(width, rows.length * 22, 'The vectors of the three layers, and their mix',
    ...rows.flatMap(([name, values], i) => [label(0, i * 22 + 14, name, strong(name === 'mix')),
      strip(values, 60, i * 22, width - 60, 18, GREEN, .5)]));
}
