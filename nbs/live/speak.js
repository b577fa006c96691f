// What the two language models in the box expect: each word from its left and from its right,
// and a gap filled from both sides. To be read beside the chapters on the biLM and on pretraining.
import {BOS, EOS, product, readTensors} from './elmo.js';

// ---- files: the output layer and its words ------------------------------------------------

const SPECIALS = 4, UNKNOWN = 1;                       // <pad> <unk> <s> </s> are no words

export class Speaker {
  constructor(elmo, tensors, words) {
    const ids = new Map(words.map((word, id) => [word, id]).slice(SPECIALS));
    Object.assign(this, {elmo, tensors, words, ids});
  }

  static async load(folder, elmo) {
    const [tensors, vocab] = await Promise.all(['output.safetensors', 'vocab.json'].map(async o => {
      const response = await fetch(folder + o);
      if (!response.ok) throw new Error(`${o}: ${response.status}`);
      return o.endsWith('.json') ? response.json() : readTensors(await response.arrayBuffer());
    }));
    return new Speaker(elmo, tensors, vocab.itos);
  }
}

// ---- adaptive softmax: the log-probability of every word, or of one ------------------------

function logSoftmax(scores) {
  let most = -Infinity, total = 0;
  for (const v of scores) most = Math.max(most, v);
  for (const v of scores) total += Math.exp(v - most);
  return scores.map(v => v - most - Math.log(total));
}

// From a state of the top layer. The commonest words have a score of their own in the head; behind
// them stands one score for each group of rarer words, whose probability is shared out in its tail.
const head = ({tensors: w}, state) => logSoftmax(product(w['head.head.weight'], state));

function tail({tensors: w}, g, state) {
  const narrow = product(w[`head.tail.${g}.0.weight`], state);      // fewer numbers for rare words
  return logSoftmax(product(w[`head.tail.${g}.1.weight`], narrow));
}

// For each group its number and its first word's id.
function groups({tensors: w}) {
  const n = g => w[`head.tail.${g}.1.weight`]?.shape[0], found = [];
  let G = 0;
  while (n(G)) G++;
  for (let g = 0, at = w['head.head.weight'].shape[0] - G; g < G; at += n(g++)) found.push([g, at]);
  return found;
}

export function logProbs(speaker, state) {
  const all = new Float32Array(speaker.words.length), common = head(speaker, state);
  const some = groups(speaker), own = common.length - some.length;
  all.set(common.subarray(0, own));
  for (const [g, at] of some) all.set(tail(speaker, g, state).map(v => common[own + g] + v), at);
  return all;
}

// One word needs the tail of its own group only.
export function logProb(speaker, state, id) {
  const common = head(speaker, state), some = groups(speaker), own = common.length - some.length;
  if (id < own) return common[id];
  const [g, at] = some.findLast(([, first]) => first <= id);
  return common[own + g] + tail(speaker, g, state)[id - at];
}

// ---- surprise: −log p of each word, from both sides ---------------------------------------

// A word is foretold by the forward state before it and by the backward state behind it.
export function score(speaker, words) {
  const [forward, backward] = speaker.elmo.states([BOS, ...words, EOS]).at(-1);
  return words.map((word, t) => {
    const id = speaker.ids.get(word) ?? UNKNOWN;
    return {word, known: speaker.ids.has(word),
      left: -logProb(speaker, forward[t], id), right: -logProb(speaker, backward[t + 2], id)};
  });
}

// ---- a gap, filled from both sides --------------------------------------------------------

// The `n` best words: possible from the left *and* from the right, so the chances are multiplied.
// How common a word is counts in both, so it is divided out once; by Zipf's law the word of rank r
// has a share like 1/r, and the vocabulary is in that order.
export function fill(speaker, left, right, n = 5) {
  const {words} = speaker, {f, b} = sides(speaker, left, right);
  const common = id => -Math.log(id + 1);
  const both = logSoftmax(f.map((v, id) => id < SPECIALS ? -1e9 : v + b[id] - common(id)));
  return top(both, n).map(id => ({word: words[id], both: Math.exp(both[id]),
    left: Math.exp(f[id]), right: Math.exp(b[id])}));
}

// The log-probability of each word in the gap, forwards from the left and backwards from the right.
function sides(speaker, left, right) {
  const {elmo} = speaker;
  return {f: logProbs(speaker, elmo.states([BOS, ...left]).at(-1)[0].at(-1)),
    b: logProbs(speaker, elmo.states([...right, EOS]).at(-1)[1][0])};
}

const top = (scores, n) => [...scores.keys()].sort((i, j) => scores[j] - scores[i]).slice(0, n);

// The `n` best words of each side by itself.
export function best(speaker, left, right, n) {
  const {f, b} = sides(speaker, left, right);
  const list = side => top(side.map((v, id) => id < SPECIALS ? -1e9 : v), n)
    .map(id => ({word: speaker.words[id], p: Math.exp(side[id])}));
  return {left: list(f), right: list(b)};
}

// ---- the next word, with a temperature ----------------------------------------------------

// The probability of each word behind `words`. Scores are divided by the temperature: below 1 the
// likely words become likelier, above 1 the others do. No mark and no unknown word is ever next.
export function next(speaker, words, temperature) {
  const state = speaker.elmo.states([BOS, ...words]).at(-1)[0].at(-1);
  const scores = logProbs(speaker, state).map((v, id) => id < SPECIALS ? -1e9 : v / temperature);
  return logSoftmax(scores).map(Math.exp);
}

// The word that a `chance` from 0 to 1 falls on.
export function draw(p, chance) {
  let left = chance * p.reduce((a, b) => a + b);
  const at = p.findIndex(v => (left -= v) < 0);
  return at < 0 ? p.length - 1 : at;
}
