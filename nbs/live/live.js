// ELMo alive on a page: sentences to edit, words to click. The model is in elmo.js.
import {Elmo, cosine, readTensors, tokenize} from './elmo.js';

const here = name => new URL(name, import.meta.url).href;
const EXAMPLES = {
  bank: {label: 'bank, twice', select: [0, 'bank'], sentences: [
    'They sat on the left bank of the river.',
    'He swam to the other bank.',
    'She owed the bank a lot of money.']},
  letters: {label: 'a slip of the pen, a word nobody knows', select: [1, 'goverment'], sentences: [
    'The government raised the taxes.',
    'The goverment raised the taxes.',
    'The slithy toves raised the taxes.']},
};
const MODEL = 'mini-en/';
const GAPS = ['She ___ not want to go home.', 'They sat on the ___ of the river.',
  'The men on the hill was tired.'];
const LAYERS = ['layer 0: letters', 'layer 1', 'layer 2'];
const NEAREST = 5;                         // neighbours that are shown
const PAUSE = 120;                         // milliseconds from the last key to the new numbers
const BLUE = '31, 119, 180', ORANGE = '224, 108, 0';
const WHAT = 'The vectors themselves, the chosen word on top: forward half left, backward half '
  + 'right. Where the strips of a layer differ, the sentence speaks.';

// No blank before a full stop, nor in did n't.
const blank = token => /^(?:[.,!?;:]|n?['’]\p{L}+)$/u.test(token) ? '' : ' ';
const same = (a, b) => a.toLowerCase() === b.toLowerCase();

// An element with its text, its attributes, what it answers to (on…), and what it holds.
function tag(name, {text, ...attributes} = {}, ...children) {
  const o = document.createElement(name);
  for (const [k, v] of Object.entries(attributes)) {
    if (k.startsWith('on')) o.addEventListener(k.slice(2), v);
    else o.setAttribute(k, v);
  }
  if (text !== undefined) o.textContent = text;
  o.append(...children);
  return o;
}

// ---- what is loaded once for all examples of a page, and only for those that need it ------

// What `make` promises, made when it is first asked for, and again where that failed.
function once(make) {
  let made;
  return () => made ||= make().catch(e => { made = null; throw e; });
}

const model = once(() => Elmo.load(here(MODEL)));
const neighbours = once(async () => new Stored(...await Promise.all([
  fetch(here('occurrences.safetensors')).then(r => r.arrayBuffer()).then(readTensors),
  fetch(here('occurrences.json')).then(r => r.json()),
])));
const speech = once(async () => {
  const [elmo, speak] = await Promise.all([model(), import('./speak.js')]);
  return {...speak, speaker: await speak.Speaker.load(here(MODEL), elmo)};
});

// Some thousand words in their sentences; what is near is measured in the directions in which
// they differ most.
class Stored {
  constructor({vectors, basis, mean}, {sentences, at}) {
    const K = basis.shape[0];
    Object.assign(this, {basis, mean: mean.data});
    const split = sentences.map(o => o.split(' '));
    const places = at.flatMap((some, s) => some.map(t => ({tokens: split[s], t})));
    this.words = places.map((o, i) => ({...o, vector: vectors.data.subarray(i * K, i * K + K)}));
  }
  // The mean of the LSTM layers in those directions.
  query(layers, t) {
    const [K, D] = this.basis.shape, states = layers.slice(1), q = new Float32Array(K);
    for (let d = 0; d < D; d++) {
      const v = states.reduce((s, l) => s + l[t][d], 0) / states.length - this.mean[d];
      for (let k = 0; k < K; k++) q[k] += this.basis.data[k * D + d] * v;
    }
    return q;
  }
  nearest(layers, t, n) {
    const q = this.query(layers, t);
    const found = this.words.map(o => ({...o, cos: cosine(q, o.vector)}));
    return found.sort((a, b) => b.cos - a.cos).slice(0, n);
  }
}

// ---- one example --------------------------------------------------------------------------

class Live {
  constructor(place, {elmo, stored}) {
    Object.assign(this, {elmo, stored, timers: []});
    this.examples = Object.keys(EXAMPLES).map(name => [name,
      tag('button', {type: 'button', text: EXAMPLES[name].label, onclick: () => this.show(name)})]);
    this.list = tag('ol', {class: 'elmo-sentences'});
    this.result = tag('div', {class: 'elmo-result', 'aria-live': 'polite'});
    place.replaceChildren(
      tag('div', {class: 'elmo-examples', role: 'group', 'aria-label': 'Examples'},
        ...this.examples.map(([, o]) => o)),
      tag('p', {class: 'elmo-hint', text: 'Change a sentence, or choose a word below it.'}),
      this.list, this.result);
    const {example} = place.dataset;
    this.show(Object.hasOwn(EXAMPLES, example) ? example : 'bank');
  }

  show(name) {
    const {sentences, select: [s, word]} = EXAMPLES[name];
    for (const [n, o] of this.examples) o.setAttribute('aria-pressed', n === name);
    this.rows = sentences.map((text, i) => this.row(text, i));
    this.list.replaceChildren(...this.rows.map(o => o.item));
    this.choose(s, this.rows[s].words.indexOf(word));
  }

  choose(s, t) { this.chosen = [s, t]; this.draw(); }

  row(text, i) {
    const later = () => {
      clearTimeout(this.timers[i]);
      this.timers[i] = setTimeout(() => { this.read(row, i); this.draw(); }, PAUSE);
    };
    const input = tag('input', {type: 'text', value: text, 'aria-label': `Sentence ${i + 1}`,
      spellcheck: 'false', autocomplete: 'off', oninput: later});
    const buttons = tag('div', {class: 'elmo-words', role: 'toolbar',
      'aria-label': `Words of sentence ${i + 1}`, onkeydown: e => this.step(e, row)});
    const row = {input, buttons, item: tag('li', {}, input, buttons)};
    this.read(row, i);
    return row;
  }

  // The sentence of a row is read again: its tokens, its layers, a button a token.
  read(row, i) {
    row.words = tokenize(row.input.value);
    row.layers = this.elmo.layers(row.words);
    row.buttons.replaceChildren(...row.words.map((word, t) =>
      tag('button', {type: 'button', text: word, onclick: () => this.choose(i, t)})));
  }

  // Arrow keys go from word to word; the tab key goes on to the next sentence.
  step(event, {buttons}) {
    const all = [...buttons.children], now = all.indexOf(document.activeElement);
    const keys = new Map([['ArrowRight', now + 1], ['ArrowLeft', now - 1], ['Home', 0],
      ['End', all.length - 1]]);
    const to = keys.get(event.key);
    if (!all[to]) return;
    event.preventDefault();
    all.forEach((o, t) => { o.tabIndex = t === to ? 0 : -1; });
    all[to].focus();
  }

  draw() {
    let [s, t] = this.chosen;
    const {words, layers} = this.rows[s];
    this.chosen[1] = t = Math.max(0, Math.min(t, words.length - 1));
    this.rows.forEach((row, i) => [...row.buttons.children].forEach((o, j) => {
      const on = i === s && j === t;
      o.setAttribute('aria-pressed', on);
      o.classList.toggle('same', !on && words.length > 0 && same(row.words[j], words[t]));
      o.tabIndex = on || (i !== s && j === 0) ? 0 : -1;
    }));
    if (!words.length) {
      this.result.replaceChildren(tag('p', {text: 'This sentence has no words yet.'}));
      return;
    }
    const others = this.compared(s, t), chosen = {s, t, word: words[t], layers};
    this.result.replaceChildren(this.table(chosen, others), this.pictures([chosen, ...others]),
      this.neighbours(chosen));
  }

  // In each sentence the same word; where another has none, the word whose letters are most alike.
  compared(s, t) {
    const {words, layers} = this.rows[s];
    return this.rows.flatMap((row, i) => {
      const cos = j => layers.map((l, k) => cosine(l[t], row.layers[k][j]));
      const all = row.words.map((word, j) => ({s: i, t: j, word, layers: row.layers, cos: cos(j)}));
      const equal = all.filter(o => same(o.word, words[t]) && !(i === s && o.t === t));
      if (equal.length || i === s) return equal;
      return all.sort((a, b) => b.cos[0] - a.cos[0]).slice(0, 1);
    });
  }

  table({word, s}, others) {
    const number = c => tag('td', {},
      tag('span', {class: 'bar', style: `--share: ${Math.max(0, c).toFixed(3)}`}),
      tag('span', {class: 'number', text: c.toFixed(2)}));
    const row = o => tag('tr', {},
      tag('th', {scope: 'row'}, tag('b', {text: o.word}), ` in sentence ${o.s + 1}`),
      ...o.cos.map(number));
    const head = ['compared with', ...LAYERS].map(text => tag('th', {scope: 'col', text}));
    return tag('table', {class: 'elmo-cosines'},
      tag('caption', {text: `Cosines of the vectors of “${word}” in sentence ${s + 1}`}),
      tag('thead', {}, tag('tr', {}, ...head)), tag('tbody', {}, ...others.map(row)));
  }

  // Each vector as a strip, a number a column: blue above nought, orange below.
  pictures(all) {
    const names = all.map(o => `“${o.word}” in sentence ${o.s + 1}`).join(', ');
    const strips = LAYERS.map((name, l) => {
      const vectors = all.map(o => o.layers[l][o.t]), D = vectors[0].length;
      const canvas = tag('canvas', {width: D, height: all.length * 8 - 1, role: 'img',
        'aria-label': `${name}: the vectors of ${names}, one above the other`});
      const pen = canvas.getContext('2d');
      const full = 2.5 * Math.sqrt(vectors[0].reduce((s, v) => s + v * v, 0) / D);
      vectors.forEach((vector, r) => vector.forEach((v, d) => {
        pen.fillStyle = `rgba(${v > 0 ? BLUE : ORANGE}, ${Math.min(1, Math.abs(v) / full)})`;
        pen.fillRect(d, r * 8, 1, 7);
      }));
      return tag('div', {class: 'elmo-strip'}, tag('span', {text: name}), canvas);
    });
    return tag('figure', {class: 'elmo-pictures'}, ...strips, tag('figcaption', {text: WHAT}));
  }

  neighbours({word, layers, t}) {
    const marked = (o, w, j) => j === o.t ? tag('mark', {text: w}) : w;
    const shown = o => o.tokens.flatMap((w, j) => [blank(w), marked(o, w, j)]);
    const found = this.stored.nearest(layers, t, NEAREST).map(o =>
      tag('li', {}, tag('span', {class: 'number', text: o.cos.toFixed(2)}), ...shown(o)));
    const many = this.stored.words.length.toLocaleString('en');
    return tag('div', {},
      tag('p', {class: 'elmo-title',
        text: `Nearest to this “${word}” among ${many} words in sentences of novels`}),
      tag('ol', {class: 'elmo-neighbours'}, ...found));
  }
}

// ---- a gap, and what surprises ------------------------------------------------------------

class Speaking {
  constructor(place, {speaker, score, fill}) {
    Object.assign(this, {speaker, score, fill});
    const later = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.draw(), PAUSE);
    };
    this.input = tag('input', {type: 'text', value: GAPS[0], 'aria-label': 'Sentence with a gap',
      spellcheck: 'false', autocomplete: 'off', oninput: later});
    this.examples = GAPS.map(text => tag('button', {type: 'button', text,
      onclick: () => { this.input.value = text; this.draw(); }}));
    this.result = tag('div', {class: 'elmo-result', 'aria-live': 'polite'});
    place.replaceChildren(
      tag('div', {class: 'elmo-examples', role: 'group', 'aria-label': 'Examples'},
        ...this.examples),
      tag('p', {class: 'elmo-hint', text: 'Change the sentence; ___ is a gap.'}),
      this.input, this.result);
    this.draw();
  }

  draw() {
    const text = this.input.value, sides = text.split(/_{3,}/).map(tokenize);
    this.examples.forEach(o => o.setAttribute('aria-pressed', o.textContent === text));
    const told = sides.length > 2 ? 'One gap at a time: this sentence has more.'
      : sides.length < 2 && !sides[0].length ? 'This sentence has no words yet.' : '';
    if (told) this.result.replaceChildren(tag('p', {text: told}));
    else if (sides.length < 2) this.result.replaceChildren(this.surprises(sides[0]));
    else {
      const [left, right] = sides, found = this.fill(this.speaker, left, right), [{word}] = found;
      this.result.replaceChildren(this.table(found),
        this.surprises([...left, word, ...right], `, with “${word}” in the gap`));
    }
  }

  table(found) {
    const number = (p, colour) => tag('td', {},
      tag('span', {class: 'bar', style: `--share: ${p.toFixed(3)}; background: ${colour}`}),
      tag('span', {class: 'number', text: p.toFixed(3)}));
    const row = o => tag('tr', {}, tag('th', {scope: 'row'}, tag('b', {text: o.word})),
      number(o.both, '#2ca02c'), number(o.left, `rgb(${BLUE})`), number(o.right, `rgb(${ORANGE})`));
    const head = ['word', 'from both sides', 'from the left', 'from the right'];
    return tag('table', {class: 'elmo-cosines'},
      tag('caption', {text: 'The gap: what the two models expect'}),
      tag('thead', {}, tag('tr', {}, ...head.map(text => tag('th', {scope: 'col', text})))),
      tag('tbody', {}, ...found.map(row)));
  }

  // Each word as deep in colour as it surprises: blue from the left, orange from the right.
  surprises(words, said = '') {
    const scored = this.score(this.speaker, words);
    const line = (name, side, colour) => tag('p', {class: 'elmo-surprise'},
      tag('span', {class: 'elmo-side', text: name}),
      ...scored.flatMap(o => [' ', tag('span', {class: 'elmo-word',
        style: `background: rgba(${colour}, ${Math.min(.5, o[side] / 20).toFixed(2)})`},
      o.word, ' ', tag('small', {text: o[side].toFixed(1) + (o.known ? '' : ' unknown')}))]));
    return tag('div', {},
      tag('p', {class: 'elmo-title',
        text: `Surprise in nats${said}: the deeper, the less expected`}),
      line('from the left', 'left', BLUE), line('from the right', 'right', ORANGE));
  }
}

// ---- the start ----------------------------------------------------------------------------

// `place` shows a picture until the reader asks for more; where something fails, it keeps it.
export async function start(place) {
  const button = place.querySelector('.elmo-start');
  const said = place.querySelector('.elmo-said')
    || place.appendChild(tag('p', {class: 'elmo-said', role: 'status'}));
  button.disabled = true;
  said.textContent = 'Loading the model …';
  try {
    if (place.dataset.example === 'gap') {
      new Speaking(place, await speech()).input.focus({preventScroll: true});
    } else {
      const [elmo, stored] = await Promise.all([model(), neighbours()]);
      new Live(place, {elmo, stored});
      place.querySelector('.elmo-words [aria-pressed=true]').focus({preventScroll: true});
    }
  } catch (e) {
    button.disabled = false;
    said.textContent = `The model could not be loaded (${e.message}). Try again, or read on.`;
  }
}
