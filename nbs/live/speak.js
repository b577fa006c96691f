// What the two language models in the box expect: each word from its left and from its right,
// and a gap filled from both sides. To be read beside the chapters on the biLM and on pretraining.
import {BOS, EOS, product, read} from './elmo.js';

// ---- files: the output layer and its words ------------------------------------------------

const SPECIALS = 4, UNKNOWN = 1;                       // <pad> <unk> <s> </s> are no words

export class Speaker {
  constructor(elmo, tensors, words) {
    const ids = new Map(words.map((word, id) => [word, id]).slice(SPECIALS));
    Object.assign(this, {elmo, tensors, words, ids});
  }

  static async load(folder, elmo) {
    const files = ['output.safetensors', 'vocab.json'].map(o => read(folder + o));
    const [tensors, vocab] = await Promise.all(files);
    return new Speaker(elmo, tensors, vocab.itos);
  }
}

// ---- adaptive softmax: the log-probability of every word -----------------------------------

function logSoftmax(scores) {
  let most = -Infinity, total = 0;
  for (const v of scores) most = Math.max(most, v);
  for (const v of scores) total += Math.exp(v - most);
  return scores.map(v => v - most - Math.log(total));
}

// From a state of the top layer. The commonest words have a score of their own in the head; behind
// them stands one score for each group of rarer words, whose probability is shared out in its tail.
export function logProbs({tensors: w, words}, state) {
  const all = new Float32Array(words.length), tails = [];
  const head = logSoftmax(product(w['head.head.weight'], state));
  for (let g = 0; w[`head.tail.${g}.0.weight`]; g++) {
    const narrow = product(w[`head.tail.${g}.0.weight`], state);    // fewer numbers for rare words
    tails.push(logSoftmax(product(w[`head.tail.${g}.1.weight`], narrow)));
  }
  let first = head.length - tails.length;                           // the id of a group's first word
  const groups = head.subarray(first);
  all.set(head.subarray(0, first));
  tails.forEach((tail, g) => {
    all.set(tail.map(v => groups[g] + v), first);
    first += tail.length;
  });
  return all;
}

// No mark and no unknown word is ever a guess.
const possible = scores => scores.map((v, id) => id < SPECIALS ? -1e9 : v);

// ---- surprise: −log p of each word, from both sides ---------------------------------------

// A word is foretold by the forward state before it and by the backward state behind it.
export function score(speaker, words) {
  const [forward, backward] = speaker.elmo.states([BOS, ...words, EOS]).at(-1);
  return words.map((word, t) => {
    const id = speaker.ids.get(word) ?? UNKNOWN;
    return {word, known: speaker.ids.has(word),
      left: -logProbs(speaker, forward[t])[id], right: -logProbs(speaker, backward[t + 2])[id]};
  });
}

// ---- a gap, filled from both sides --------------------------------------------------------

// The `n` best words from the left, from the right, and from both. Those of both must be possible
// from the left *and* from the right, so the chances are multiplied. How common a word is counts in
// both, so it is divided out once; by Zipf's law the word of rank r has a share like 1/r, and the
// vocabulary is in that order.
export function fill(speaker, left, right, n = 5) {
  const {elmo, words} = speaker;
  const forward = logProbs(speaker, elmo.states([BOS, ...left]).at(-1)[0].at(-1));
  const backward = logProbs(speaker, elmo.states([...right, EOS]).at(-1)[1][0]);
  const both = logSoftmax(possible(forward.map((v, id) => v + backward[id] + Math.log(id + 1))));
  const best = scores => likeliest(possible(scores), n).map(id => ({word: words[id],
    left: Math.exp(forward[id]), right: Math.exp(backward[id]), both: Math.exp(both[id])}));
  return {left: best(forward), right: best(backward), both: best(both)};
}

export const likeliest = (scores, n) =>
  [...scores.keys()].sort((i, j) => scores[j] - scores[i]).slice(0, n);

// ---- the next word, with a temperature ----------------------------------------------------

// The probability of each word behind `words`. Scores are divided by the temperature: below 1 the
// likely words become likelier, above 1 the others do.
export function next(speaker, words, temperature) {
  const scores = logProbs(speaker, speaker.elmo.states([BOS, ...words]).at(-1)[0].at(-1));
  return logSoftmax(possible(scores.map(v => v / temperature))).map(Math.exp);
}

// The word that a `chance` from 0 to 1 falls on.
export function draw(p, chance) {
  let left = chance * p.reduce((a, b) => a + b);
  const at = p.findIndex(v => (left -= v) < 0);
  return at < 0 ? p.length - 1 : at;
}
