"""The drawings: labels that a phone shows large enough, text that stands out from what lies
below it, one style"""
import re
from xml.etree import ElementTree

import pytest

import after_render
from notebooks import home, nbs, source, read, taught, name

SVG = '{http://www.w3.org/2000/svg}'
# the card of other sites, marks, and the picture of the demo
OTHERS = 'card', 'logo', 'favicon', 'live'
drawings = [f for f in sorted((home/'images').glob('*.svg')) if f.stem not in OTHERS]
each = pytest.mark.parametrize('file', drawings, ids=lambda f: f.stem)
# pixels that a phone of 390 has for the text
COLUMN = 347.5
SMALLEST = 11.5
DARK_TEXT = {'#1f2430', '#4b5563', '#1a5a8a', '#964800', '#1e6b1e', '#b3261e', '#ffffff', '#08240a',
             '#2b1500'}

def box(root): return [float(o) for o in root.get('viewBox').split()]
def narrow_of(file): return file.with_name(f'{file.stem}-narrow.svg')

def walk(element, x=0., y=0., style=None):
    "Each element with its shift and what it inherits"
    style = {**(style or {}), **{k: element.get(k)
                                 for k in ('fill', 'font-size', 'font-family', 'opacity',
                                           'fill-opacity') if element.get(k)}}
    moved = re.match(r'translate\(\s*(-?[\d.]+)[ ,]+(-?[\d.]+)\s*\)', element.get('transform', ''))
    assert moved or not element.get('transform'), element.get('transform')
    if moved: x, y = x + float(moved[1]), y + float(moved[2])
    yield element, x, y, style
    for part in element:
        if element.tag != SVG + 'defs': yield from walk(part, x, y, style)

def labels(file):
    "(text, font size, colour, opacity, middle) of each label, in the units of the drawing"
    for o,x,y,style in walk(ElementTree.parse(file).getroot()):
        if o.tag not in (SVG + 'text', SVG + 'tspan') or not (o.text or '').strip(): continue
        size = float(style.get('font-size', 16))
        half = .25*size*len(o.text)
        middle = {'middle': 0, 'end': -half}.get(o.get('text-anchor'), half)
        at = x + float(o.get('x', 0)) + middle, y + float(o.get('y', 0)) - .35*size
        opacity = float(style.get('opacity', 1))*float(style.get('fill-opacity', 1))
        yield o.text, size, style.get('fill'), opacity, at, o.tag

def rgb(colour): return [int(colour[i:i+2], 16) for i in (1, 3, 5)]
def over(top, share, below): return [share*a + (1 - share)*b for a,b in zip(top, below)]

def grounds(file):
    "(contains a point?, colour, opacity) of each filled shape, from the lowest to the highest"
    for o,x,y,style in walk(ElementTree.parse(file).getroot()):
        fill = style.get('fill', '#000000')
        if fill == 'none' or o.tag not in (SVG + 'rect', SVG + 'circle'): continue
        share = float(style.get('fill-opacity', 1))*float(style.get('opacity', 1))
        side = {k: float(o.get(k, 0)) for k in ('x', 'y', 'width', 'height', 'cx', 'cy', 'r')}
        if o.tag == SVG + 'rect':
            inside = lambda u, v, s=side, x=x, y=y: (
                s['x'] <= u - x <= s['x'] + s['width'] and s['y'] <= v - y <= s['y'] + s['height'])
        else:
            inside = lambda u, v, s=side, x=x, y=y: (u-x-s['cx'])**2 + (v-y-s['cy'])**2 <= s['r']**2
        yield inside, rgb(fill), share

def luminance(colour):
    return sum(w*(c/12.92 if c <= .04045 else ((c+.055)/1.055)**2.4)
               for w,c in zip((.2126, .7152, .0722), (o/255 for o in colour)))
def contrast(a, b):
    a,b = sorted((luminance(a), luminance(b)))
    return (b + .05)/(a + .05)

def faint(file):
    "Labels whose contrast with what lies below them is less than 4.5"
    shapes, bad = list(grounds(file)), []
    for text,_,fill,opacity,(u,v),tag in labels(file):
        # stands where its text does; its colour is checked by the palette
        if tag == SVG + 'tspan': continue
        ground = [255, 255, 255]
        for inside,colour,share in shapes:
            if inside(u, v): ground = over(colour, share, ground)
        ink = over(rgb(fill or '#000000'), opacity, ground)
        if contrast(ink, ground) < 4.5:
            bad.append((text, fill, [round(o) for o in ground], round(contrast(ink, ground), 2)))
    return bad

def shown(file, extent):
    """Width in pixels at which a page of 390 shows the drawing, by the tag that the site writes:
    the column, or more in a box that scrolls"""
    tag = after_render.sized(f'<p><img src="{file.name}" alt="A"></p>', file.parent)
    if 'srcset=' in tag:
        assert narrow_of(file).name in tag
        return None
    return extent if 'class="wide' in tag else min(extent, COLUMN)

@each
def test_labels_are_large_enough_on_a_phone(file):
    """Of each drawing that a phone shows: the narrow version where there is one, else the
    drawing itself, whole or in a box that scrolls"""
    width = box(ElementTree.parse(file).getroot())[2]
    there = min(width, COLUMN) if file.stem.endswith('-narrow') else shown(file, width)
    if there is None: return                              # its narrow version has a test of its own
    small = [(text, round(size*there/width, 1)) for text,size,*_ in labels(file)
             if size*there/width < SMALLEST]
    assert not small

def test_narrow_versions_are_there_and_belong_to_a_drawing():
    narrow = [f for f in drawings if f.stem.endswith('-narrow')]
    assert len(narrow) >= 10
    for f in narrow:
        wide = f.with_name(f.name.replace('-narrow', ''))
        assert wide.is_file(), f.name
        title = lambda file: ElementTree.parse(file).getroot().find(SVG + 'title').text
        assert title(f) == title(wide)

@each
def test_text_stands_out(file): assert not faint(file)

def test_faint_text_is_found(tmp_path):
    drawing = ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 90 90">'
               '<rect width="90" height="90" fill="#ffffff"/><g transform="translate(10,10)">'
               '<rect width="60" height="30" fill="#1f77b4" fill-opacity="{}"/>'
               '<text x="5" y="20" fill="#1a5a8a" font-size="14">a</text></g></svg>')
    for share,count in (('.14', 0), ('.9', 1)):
        file = tmp_path/'a.svg'
        file.write_text(drawing.format(share), encoding='utf-8')
        assert len(faint(file)) == count

@each
def test_one_style(file):
    "White paper with a thin edge, one font, and the palette"
    root = ElementTree.parse(file).getroot()
    paper = next(o for o in root if o.tag == SVG + 'rect')
    x,y,w,h = box(root)
    assert paper.get('fill') == '#ffffff'
    assert (float(paper.get('width')), float(paper.get('height'))) == (w - 2, h - 2)
    assert root.get('font-family') == 'Helvetica, Arial, sans-serif'
    assert {fill for _,_,fill,*_ in labels(file)} <= DARK_TEXT
    assert root.find(SVG + 'title').text and len(root.find(SVG + 'desc').text) > 40

def test_drawings_of_the_pages_exist_and_are_used():
    used = {f for nb in nbs for c in read(nb)['cells'] if c['cell_type'] == 'markdown'
            for f in re.findall(r'\]\((?:\.\./)?images/([\w-]+)\.svg\)', source(c))}
    files = {f.stem for f in drawings}
    assert used - set(OTHERS) <= files
    assert {f for f in files if not f.endswith('-narrow')} - used == set(), 'no page shows it'

def test_lessons_have_pictures():
    "Two drawings or plots in each lesson from 03 to 13"
    for nb in taught[3:14]:
        cells = read(nb)['cells']
        drawn = sum(len(re.findall(r'!\[[^\]]*\]\(', source(c))) for c in cells
                    if c['cell_type'] == 'markdown')
        plotted = sum(any(m.startswith('image/') for m in o.get('data', {})) for c in cells
                      if c['cell_type'] == 'code' for o in c['outputs'])
        assert drawn + plotted >= 2, name(nb)
