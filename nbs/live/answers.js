// What the panels of the explainer show, computed from the model in the box. Each answer is a plain
// object: the worker sends it to the page, and stored.json keeps those of the examples. A question
// names a panel, sentences as lists of tokens, and the chosen word as [sentence, position].
import {BOS, EOS, charCNN, charIds, cosine, dot, influence as changes} from './elmo.js';
import {draw, fill, likeliest, next, score} from './speak.js';

const rounded = (values, digits = 3) => Array.from(values, v => Number(v.toPrecision(digits)));
export const same = (a, b) => a.toLowerCase() === b.toLowerCase();

// ---- every word with every word -----------------------------------------------------------

// For each layer the cosines of all words with those before them, row after row, in hundredths.
export function map({elmo}, {sentences}) {
  const read = sentences.map(words => elmo.layers(words));
  const cosines = Array.from({length: elmo.config.n_layers + 1}, (_, l) => {
    const unit = read.flatMap(layers => layers[l]).map(v => {
      const size = Math.sqrt(dot(v, v)) || 1;
      return v.map(x => x / size);
    });
    return unit.flatMap((a, i) => unit.slice(0, i).map(b => Math.round(100 * dot(a, b))));
  });
  return {cosines};
}

// ---- senses -------------------------------------------------------------------------------

// Words in their sentences, with the senses that people gave to some of them.
export class Occurrences {
  constructor({vectors, basis, mean, axes}, {sentences, at, senses, words}) {
    const K = basis.shape[0];
    Object.assign(this, {basis, mean: mean.data, axes: axes.data, words});
    const places = sentences.flatMap((text, s) => {
      const tokens = text.split(' ');
      return at[s].map(t => ({tokens, t, sense: senses[s]}));
    });
    this.all = places.map((place, i) =>
      ({...place, vector: vectors.data.subarray(i * K, i * K + K)}));
  }

  // The mean of the LSTM layers in the stored directions, those in which words differ most.
  project(layers, t) {
    const [K, D] = this.basis.shape, upper = layers.slice(1), out = new Float32Array(K);
    for (let d = 0; d < D; d++) {
      const v = upper.reduce((sum, l) => sum + l[t][d], 0) / upper.length - this.mean[d];
      for (let k = 0; k < K; k++) out[k] += this.basis.data[k * D + d] * v;
    }
    return out;
  }

  // A vector as a dot, in the two directions in which the occurrences of a word differ most.
  dot(word, vector) {
    const K = vector.length, row = 2 * this.words.indexOf(word.toLowerCase());
    const axis = a => this.axes.subarray((row + a) * K, (row + a + 1) * K);
    return rounded([dot(axis(0), vector), dot(axis(1), vector)]);
  }

  of(word) {
    const found = this.words.includes(word.toLowerCase());
    return found ? this.all.filter(o => same(o.tokens[o.t], word)) : [];
  }

  nearest(vector, among, n) {
    const found = among.map(o => ({...o, cosine: cosine(vector, o.vector)}));
    return found.sort((a, b) => b.cosine - a.cosine).slice(0, n);
  }
}

const shown = o => ({text: o.tokens.join(' '), t: o.t, sense: o.sense,
  cosine: o.cosine && Number(o.cosine.toFixed(2))});

export function senses({elmo, stored}, {sentences, chosen: [s, t]}) {
  const word = sentences[s][t], text = sentences[s].join(' '), known = stored.of(word);
  const layers = sentences.map(words => elmo.layers(words));
  const others = (known.length ? known : stored.all).filter(o => o.tokens.join(' ') !== text);
  const near = stored.nearest(stored.project(layers[s], t), others, 4).map(shown);
  if (!known.length) return {word, near, n: others.length, dots: [], yours: []};
  const yours = sentences.flatMap((words, i) => words.flatMap((w, j) => !same(w, word) ? []
    : [{s: i, t: j, at: stored.dot(word, stored.project(layers[i], j))}]));
  const dots = known.map(o => ({...shown(o), at: stored.dot(word, o.vector)}));
  return {word, near, n: others.length, dots, yours};
}

// ---- two readers --------------------------------------------------------------------------

// The chosen word as a gap, filled from the left, from the right and from both; and how much each
// word of the sentence surprises each side.
export function readers({speaker}, {sentences, chosen: [s, t]}) {
  const words = sentences[s], left = words.slice(0, t), right = words.slice(t + 1);
  const guesses = fill(speaker, left, right);
  const short = side => guesses[side].map(o => ({word: o.word, p: Number(o[side].toPrecision(3))}));
  return {left: short('left'), right: short('right'), both: short('both'),
    nats: score(speaker, words).map(o => ({word: o.word, known: o.known,
      left: Number(o.left.toFixed(1)), right: Number(o.right.toFixed(1))}))};
}

// ---- which words moved this vector, and what comes next -----------------------------------

export function influence({elmo}, {sentences, chosen: [s, t]}) {
  return {changes: rounded(changes(elmo, sentences[s], t))};
}

// The chances of the word behind the chosen one and those that were written; with a `chance` from 0
// to 1, one of them.
export function write({speaker}, {sentences, chosen: [s, t], written = [], temperature = 1, chance}) {
  const p = next(speaker, [...sentences[s].slice(0, t + 1), ...written], temperature);
  return {best: likeliest(p, 8).map(id => ({word: speaker.words[id], p: Number(p[id].toPrecision(3))})),
    ...chance === undefined ? {} : {word: speaker.words[draw(p, chance)]}};
}

// ---- inside -------------------------------------------------------------------------------

const STRIP = 24, CELL = 10;               // numbers of a vector's half and of a state that are drawn

export function inside({elmo}, {sentences, chosen: [s, t]}) {
  const {tensors, config} = elmo, words = sentences[s];
  const bytes = [...new TextEncoder().encode(words[t])].slice(0, config.max_chars - 2);
  const letters = ['‹', ...bytes.map(b => b > 32 && b < 127 ? String.fromCharCode(b)
    : b.toString(16)), '›'];
  const {fits, features, gates, highway} =
    charCNN(tensors, config, charIds(words[t], config.max_chars));
  const strongest = likeliest(features, 8);
  const states = elmo.states([BOS, ...words, EOS]).slice(1).map(sides => sides.map(side =>
    words.map((_, i) => rounded(side[i + 1].slice(0, CELL), 2))));
  const read = sentences.map(tokens => elmo.layers(tokens));
  const own = read[s].map(layer => layer[t]), half = own[0].length / 2;
  const products = (a, b) => a.map(x => b.map(y => Number(dot(x, y).toPrecision(5))));
  const others = sentences.flatMap((tokens, i) => tokens.flatMap((w, j) => {
    const vectors = read[i].map(layer => layer[j]);
    return same(w, words[t]) && !(i === s && j === t)
      ? [{s: i, t: j, own: products(vectors, vectors), cross: products(own, vectors)}] : [];
  }));
  return {letters, states, others, own: products(own, own),
    filters: strongest.map(k => ({k, width: fits[k].width, place: fits[k].place,
      fit: Number(fits[k].fit.toFixed(2))})),
    n: features.length, changed: rounded(gates.map(g => g.reduce((a, b) => a + b) / g.length), 2),
    features: rounded(features.slice(0, 2 * STRIP), 2), highway: rounded(highway.slice(0, 2 * STRIP), 2),
    layers: own.map(v => rounded([...v.slice(0, STRIP), ...v.slice(half, half + STRIP)], 3))};
}

export const PANELS = {map, senses, readers, influence, write, inside};

// Which files an answer needs besides the model.
export const NEEDS = {senses: ['stored'], readers: ['speaker'], write: ['speaker']};
export const keyOf = ({panel, sentences, chosen, ...more}) =>
  JSON.stringify([panel, sentences, ...panel === 'map' ? [] : [chosen], ...Object.values(more)]);
