// What the two language models in the box expect: each word from its left and from its right,
// and a gap filled from both sides. To be read beside the chapters on the biLM and on pretraining.
import {product, readTensors} from './elmo.js';

export const GAP = '___';
const SPECIALS = 4;                                    // <pad> <unk> <s> </s>

function logSoftmax(scores) {
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const total = Math.log(scores.reduce((s, v) => s + Math.exp(v - most), 0));
  return scores.map(v => v - most - total);
}

export class Speaker {
  constructor(elmo, tensors, words) {
    Object.assign(this, {elmo, tensors, words});
    this.ids = new Map(words.map((word, id) => [word, id]));
  }

  static async load(folder, elmo) {
    const [tensors, vocab] = await Promise.all(['output.safetensors', 'vocab.json'].map(async o => {
      const response = await fetch(folder + o);
      if (!response.ok) throw new Error(`${o}: ${response.status}`);
      return o.endsWith('.json') ? response.json() : readTensors(await response.arrayBuffer());
    }));
    return new Speaker(elmo, tensors, vocab.itos);
  }

  // The log-probability of every word, from a state of the top layer: the adaptive softmax.
  // Frequent words have scores of their own; each group of rarer words has one, shared out below.
  logProbs(state) {
    const {tensors: w, words} = this, out = new Float32Array(words.length);
    const head = logSoftmax(product(w['head.head.weight'], state));
    let groups = 0;
    while (w[`head.tail.${groups}.1.weight`]) groups++;
    let at = head.length - groups;
    out.set(head.subarray(0, at));
    for (let g = 0; g < groups; g++) {
      const narrow = product(w[`head.tail.${g}.0.weight`], state);
      const group = logSoftmax(product(w[`head.tail.${g}.1.weight`], narrow));
      out.set(group.map(v => v + head[head.length - groups + g]), at);
      at += group.length;
    }
    return out;
  }

  id(word) { return this.ids.get(word) ?? 1; }         // 1: <unk>

  // The surprise of each word, -log p, from the left and from the right.
  score(words) {
    const [f, b] = this.elmo.states(['<s>', ...words, '</s>']).at(-1);
    return words.map((word, t) => {
      const surprise = state => -this.logProbs(state)[this.id(word)];
      return {word, known: this.ids.has(word), left: surprise(f[t]), right: surprise(b[t + 2])};
    });
  }

  // The `n` best words for one gap: possible from the left *and* from the right, so the chances
  // are multiplied; what is merely frequent is in both, so it is divided out once.
  fill(left, right, n = 5) {
    const f = this.logProbs(this.elmo.states(['<s>', ...left]).at(-1)[0].at(-1));
    const b = this.logProbs(this.elmo.states([...right, '</s>']).at(-1)[1][0]);
    const often = id => -Math.log(id + 1);             // by Zipf's law: ids are ranks
    const both = logSoftmax(f.map((v, id) => id < SPECIALS ? -1e9 : v + b[id] - often(id)));
    const best = [...both.keys()].sort((i, j) => both[j] - both[i]).slice(0, n);
    return best.map(id => ({word: this.words[id], both: Math.exp(both[id]),
      left: Math.exp(f[id]), right: Math.exp(b[id])}));
  }
}
