"""The picture at the top of the README: `python tests/picture.py` writes nbs/images/glide*.svg

A sentence is typed, and the dot of its *bank* glides among labelled occurrences. All places are
answers of the explainer's own scripts, on the model in the box. The stills, for readers who want no
motion, show both ends of the way."""
import stored

WORD, TYPED = 'bank', ('She sat on the bank of the river.', 'She worked as a bank clerk.')
COMMON = len('She ')                                        # letters that stay between the two
W, H, LEFT, TOP, ROOM, HIGH = 760, 430, 44, 100, 672, 230   # of the picture, of its dots
LETTER = 13.2                                               # pixels of a letter in the typed line
KEY, READ, HOLD, GLIDE = .07, .25, 2.6, .6                  # seconds
LABELS = (-20, 96), (34, 6)                                 # where the ends' names stand
INKS = 'paper', 'field', 'line', 'ink', 'grey', 'edge', 'money'
LIGHT = '#ffffff', '#ffffff', '#c9ced6', '#1f2430', '#4b5563', '#1f77b4', '#e06c00'
DARK = '#161b22', '#0d1117', '#3d444d', '#f0f3f6', '#b7bdc8', '#58a6e8', '#ff9a4d'
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
TYPE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

ANSWERS = """
const elmo = box(), occurrences = new A.Occurrences(
  tensors(places.live + '/occurrences.safetensors'), json(places.live + '/occurrences.json'));
return value.texts.map(text => {
  const words = E.tokenize(text);
  const question = {sentences: [words], chosen: [0, words.indexOf(value.word)]};
  return A.senses({elmo, stored: occurrences}, question);
});
"""

def answers():
    """Where the word lies in each beginning of a typed sentence that ends with a whole word; and
    the labelled dots"""
    texts = [text[:i] for text in TYPED for i in range(len(text) + 1)
             if WORD in text[:i] and text[i:i+1] in ('', ' ', '.')]
    found = stored.run(ANSWERS, dict(texts=texts, word=WORD))
    return {o: f['yours'][0]['at'] for o,f in zip(texts, found)}, found[0]['dots']

def story(at):
    "Steps (second, sentence, letters that are seen, place of the dot), and the seconds of them all"
    now, place, steps = 0, at[TYPED[1]], []
    for k,text in enumerate(TYPED):
        typed = [*range(COMMON, len(text) + 1)]
        for n in [*typed, *typed[-2::-1]]:
            back = n < steps[-1][2] if steps and steps[-1][1] == k else False
            if not back: place = at.get(text[:n], place)
            steps.append((now, k, n, place))
            now += KEY/2 if back else HOLD if n == len(text) else READ if text[:n] in at else KEY
    return steps, now

def frames(name, styles, length, glide=0):
    "Keyframes of (second, style): each style holds until the next, or glides to it"
    lines, last = [], None
    for t,style in styles:
        if style == last: continue
        if glide and last: lines.append((t, last))
        lines.append((t + glide if last else 0, style))
        last = style
    body = ''.join(f'{100*t/length:.2f}%{{{style}}}' for t,style in [*lines, (length, last)])
    return (f'@keyframes {name}{{{body}}}.{name}{{animation:{name} {length:.1f}s '
            f'{"ease-in-out" if glide else "step-end"} infinite}}')

def picture(at, dots, colours, moves):
    "The SVG in some `colours`; a still where nothing `moves`"
    c, (xs, ys) = dict(zip(INKS, colours)), zip(*(o['at'] for o in dots))
    def place(p):
        return (LEFT + ROOM*(p[0] - min(xs))/(max(xs) - min(xs)),
                TOP + HIGH*(max(ys) - p[1])/(max(ys) - min(ys)))
    def moved(x, y): return f'transform:translate({x:.1f}px,{y:.1f}px)'
    def text(x, y, size, said, more=''):
        said = said.replace(WORD, f'<tspan font-weight="700">{WORD}</tspan>') if size > 15 else said
        return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" {more}>{said}</text>'
    def dot(x, y, fill, more='r="7"'):
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" fill="{fill}" {more}/>'
    steps, length = story(at)
    css = [frames('type', [(t, moved(n*LETTER, 0)) for t,_,n,_ in steps], length),
           *(frames(o, [(t, f'opacity:{int(k == i)}') for t,k,*_ in steps], length)
             for i,o in enumerate(['one', 'two'])),
           frames('glide', [(t, moved(*place(p))) for t,*_,p in steps], length, GLIDE)]
    still = [f'.type{{{moved(len(TYPED[1])*LETTER, 0)}}}.one{{opacity:0}}',
             f'.glide{{{moved(*place(at[TYPED[1]]))}}}']
    typed = [text(20, 28, 22, said, f'class="{kind}" font-family="{TYPE}" xml:space="preserve" '
                                    f'textLength="{len(said)*LETTER:.1f}"')
             for said,kind in zip(TYPED, ('one', 'two'))]
    ends = []
    for said,(dx, dy) in zip(TYPED, LABELS):
        x, y = place(at[said])
        ring = f'r="13" stroke="{c["ink"]}" stroke-width="2" stroke-dasharray="3 3"'
        halo = f'stroke="{c["paper"]}" stroke-width="5" paint-order="stroke"'
        ends += [dot(x, y, 'none', ring), text(x + dx, y + dy, 17, said, halo)]
    way = 'M{:.1f},{:.1f}L{:.1f},{:.1f}'.format(*place(at[TYPED[0]]), *place(at[TYPED[1]]))
    return '\n'.join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" role="img" '
        f'aria-labelledby="glide-title" font-family="{FONT}" fill="{c["ink"]}">',
        f'<title id="glide-title">The vector of “{WORD}” while a sentence is typed</title>',
        f'<style>{"".join(still + css*moves)}</style>',
        f'<rect x="1" y="1" width="{W-2}" height="{H-2}" rx="12" fill="{c["paper"]}" '
        f'stroke="{c["line"]}"/>',
        f'<rect x="24" y="20" width="{W-48}" height="44" rx="8" fill="{c["field"]}" '
        f'stroke="{c["grey"]}"/>',
        f'<svg x="25" y="21" width="{W-58}" height="42">', *typed,
        f'<g class="type"><rect x="20" width="{W}" height="42" fill="{c["field"]}"/>'
        f'<rect x="21" y="8" width="2" height="26" fill="{c["ink"]}"/></g></svg>',
        *(dot(*place(o['at']), c[o['sense'].split('/')[1]]) for o in dots),
        f'<path d="{way}" stroke="{c["grey"]}" stroke-dasharray="2 6"/>', *ends,
        dot(0, 0, c['ink'], 'r="13" class="glide"'),
        dot(48, H - 24, c['edge']), text(62, H - 19, 15, 'bank of a river'),
        dot(200, H - 24, c['money']), text(214, H - 19, 15, 'bank with money'),
        text(W - 28, H - 19, 15, 'small dots: labelled by hand',
             f'text-anchor="end" fill="{c["grey"]}"'),
        '</svg>', ''])

def pictures():
    "The text of all four files by their names"
    at, dots = answers()
    return {f'glide{kind}{shade}.svg': picture(at, dots, colours, moves)
            for kind,moves in (('', True), ('-still', False))
            for shade,colours in (('', LIGHT), ('-dark', DARK))}

if __name__ == '__main__':
    for name,svg in pictures().items():
        (stored.live.parent/'images'/name).write_text(svg, encoding='utf-8')
        print(f'{name}: {len(svg)/1000:.0f} kB')
