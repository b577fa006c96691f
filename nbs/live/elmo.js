// ELMo in the browser: text → tokens → letters → token vectors → two LSTMs that never meet.
// To be read beside the chapters on tokens, characters, recurrence and ELMo. Plain JavaScript:
// no dependency, no build step. A matrix is {data, shape}, its numbers row after row.

// ---- tokens: `word_tokenize` --------------------------------------------------------------

const LETTER = '\\p{L}\\p{N}_', MARK = '\\p{M}', FORMAT = '\\p{Cf}';   // Python's \w; accents
const SPACE = '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a'
  + '\\u2028\\u2029\\u202f\\u205f\\u3000';
const CHAR = `[${LETTER}${MARK}${FORMAT}]`, ENDS = `(?![${FORMAT}]*[${LETTER}${MARK}])`;
const NT = "[nN]['’][tT]", SHORT = '[sSdDmM]|[rRvV][eE]|[lL][lL]';
const WORD = new RegExp([
  '<[uU][nN][kK]>',                                    // the mark that published corpora use
  '\\p{Nd}+(?:[.,:]\\p{Nd}+)+',                        // 1,250.75  10:30
  `${CHAR}+?(?=${NT}${ENDS})`,                         // did|n't
  `${NT}${ENDS}`,                                      // it|'s  café|'s, but not after ≠:
  `(?<=${CHAR})(?<![^${LETTER}${MARK}${FORMAT}${SPACE}][${MARK}])['’](?:${SHORT})${ENDS}`,
  `${CHAR}+(?:[-.]${CHAR}+)*`,                         // bank  well-known  e.g|.
  '\\.{2,}|-{2,}',                                     // ...  --
  '[\\u{1F1E6}-\\u{1F1FF}]{2}',                        // a flag is two letters
  `[^${LETTER}${SPACE}](?:[${MARK}\\u{1F3FB}-\\u{1F3FF}]|[\\u{E0020}-\\u{E007E}]+\\u{E007F}`
    + `|\\u200d[^${LETTER}${FORMAT}${SPACE}])*`,       // a sign, skin tone, tags, what is joined
].join('|'), 'gu');

// Format characters have no shape, but for some that are like letters. Marks of direction are
// dropped, the others belong to a word only inside it (ZWJ also behind its last letter).
const DROPPED = /[\ufeff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;
const HIDDEN = '(?![\\u0600-\\u0605\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u{110bd}\\u{110cd}])\\p{Cf}';
const EDGES = new RegExp(`^(?:${HIDDEN})+|(?:(?!\\u200d)${HIDDEN})+$`, 'gu');
const SIGN = new RegExp(`^[^${LETTER}${MARK}${FORMAT}]`, 'u');   // an emoji may end with tags
const trim = token => SIGN.test(token) ? token : token.replace(EDGES, '').replace(EDGES, '');
const trimmed = tokens => tokens.map(trim).filter(token => token);

// Scripts without blanks (Han, Kana, Thai …): each letter is a token, unless the text has blanks.
const UNSPACED = '\\u3005-\\u3007\\u3041-\\u30ff\\uff66-\\uff9f\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff'
  + '\\u{20000}-\\u{3134f}\\u0e00-\\u0eff\\u1780-\\u17ff\\u1000-\\u109f';
const RUN = new RegExp(`[${UNSPACED}]+`, 'gu');
const BLANK = new RegExp(`[${UNSPACED}][${SPACE}]+[${UNSPACED}]`, 'u');
const NARROW = new RegExp(`(?<=[${UNSPACED}])\\u200b|\\u200b(?=[${UNSPACED}])`, 'gu');
const PART = new RegExp(`[${UNSPACED}][${MARK}${FORMAT}]*|[^${UNSPACED}]+`, 'gu');

function isSpaced(text) {
  const runs = text.match(RUN) || [];
  const letters = runs.reduce((sum, run) => sum + [...run].length, 0);
  return !runs.length || BLANK.test(text) && letters <= 6*runs.length;
}

export function tokenize(text) {
  const clean = text.replace(DROPPED, '').normalize('NFC').replace(NARROW, ' ');
  const words = clean.match(WORD) || [];
  return trimmed(isSpaced(clean) ? words : words.flatMap(word => word.match(PART)));
}

// ---- files: safetensors -------------------------------------------------------------------

// Eight bytes with the length of a header, the header as JSON, the numbers.
export function readTensors(buffer) {
  const size = Number(new DataView(buffer).getBigUint64(0, true)), tensors = Object.create(null);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
  delete header.__metadata__;
  for (const [name, {dtype, shape, data_offsets: [a, b]}] of Object.entries(header)) {
    const bytes = buffer.slice(8 + size + a, 8 + size + b);
    if (dtype === 'F32') tensors[name] = {shape, data: new Float32Array(bytes)};
    if (dtype === 'F16') tensors[name] = {shape, data: halves(new Uint16Array(bytes))};
    if (dtype === 'I8') tensors[name] = {shape, data: new Float32Array(new Int8Array(bytes))};
  }
  for (const name of Object.keys(tensors)) {           // rows of int8 have a scale each
    const {data, shape: [rows]} = tensors[name], scale = tensors[name + '.scale'];
    const row = i => Math.floor(i * rows / data.length);
    if (scale) data.forEach((v, i) => { data[i] = v * scale.data[row(i)]; });
  }
  return tensors;
}

// Half precision: one bit of sign, five of exponent, ten of fraction.
function half(bits) {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
  return bits & 0x8000 ? -size : size;
}
const HALF = Float32Array.from({length: 65536}, (_, bits) => half(bits));
function halves(bits) {
  const out = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) out[i] = HALF[bits[i]];
  return out;
}

// A file by its name: JSON, or tensors.
export async function read(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url.split('/').pop()}: ${response.status}`);
  return url.endsWith('.json') ? response.json() : readTensors(await response.arrayBuffer());
}

// ---- arithmetic ---------------------------------------------------------------------------

const sigmoid = v => 1 / (1 + Math.exp(-v));

// W x + b for one vector x; eight rows at a time, so that each number of x is read once for eight.
export function product({data: w, shape: [E, D]}, x, b) {
  const y = new Float32Array(E), add = e => b ? b.data[e] : 0;
  for (let e = 0; e < E; e += 8) {
    const row = i => Math.min(e + i, E - 1) * D;       // at the end there may be fewer
    const k0 = row(0), k1 = row(1), k2 = row(2), k3 = row(3);
    const k4 = row(4), k5 = row(5), k6 = row(6), k7 = row(7);
    let s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
    for (let d = 0; d < D; d++) {
      const v = x[d];
      s0 += w[k0 + d] * v, s1 += w[k1 + d] * v, s2 += w[k2 + d] * v, s3 += w[k3 + d] * v;
      s4 += w[k4 + d] * v, s5 += w[k5 + d] * v, s6 += w[k6 + d] * v, s7 += w[k7 + d] * v;
    }
    const sums = [s0, s1, s2, s3, s4, s5, s6, s7];
    sums.forEach((s, i) => { y[e + i] = s + add(e + i); });                // beyond the end: no-op
  }
  return y;
}

// ---- characters: one vector a token, from its letters alone -------------------------------

// AI2's ids: a byte of UTF-8 is 1 to 256. The ends of a sentence are tokens, too, and no text.
const BOW = 259, EOW = 260, PAD = 261;
export const BOS = Symbol('<s>'), EOS = Symbol('</s>');
const MARKS = new Map([[BOS, 257], [EOS, 258]]);

function symbols(token, most) {
  if (MARKS.has(token)) return [MARKS.get(token)];
  const bytes = new TextEncoder().encode(token.replace(/\p{Cs}/gu, '?'));
  return Array.from(bytes.slice(0, most), b => b + 1);
}

// A token as a row of ids: its bytes between two marks, then padding up to `width` in all.
export function charIds(token, width) {
  const row = [BOW, ...symbols(token, width - 2), EOW];
  return row.concat(Array(width - row.length).fill(PAD));
}

// Where one filter [E, width] fits the letters best, and how well.
function bestFit(kernel, bias, letters, E, places) {
  const width = kernel.length / E;
  let fit = -Infinity, place = 0;
  for (let i = 0; i < places; i++) {
    let s = bias;
    for (let e = 0; e < E; e++) {
      for (let j = 0; j < width; j++) s += kernel[e * width + j] * letters[(i + j) * E + e];
    }
    if (s > fit) [fit, place] = [s, i];
  }
  return {width, fit, place};
}

function filters(w, config, ids) {
  const E = config.char_dim, table = w['chars.embed.weight'].data;
  const letters = Float32Array.from(ids.flatMap(id => [...table.slice(id * E, id * E + E)]));
  const used = ids.filter(id => id !== PAD).length;      // one window of padding alone is enough
  return config.filters.flatMap(([width], f) => {
    const kernels = w[`chars.convs.${f}.weight`].data, bias = w[`chars.convs.${f}.bias`].data;
    const places = Math.min(used + 1, ids.length - width + 1), size = E * width;
    const kernel = k => kernels.subarray(k * size, k * size + size);
    return Array.from(bias, (b, k) => bestFit(kernel(k), b, letters, E, places));
  });
}

// The vector of a token, and what led to it: the filters' best fits and the highway's gates.
export function charCNN(w, config, ids) {
  const act = config.activation === 'tanh' ? Math.tanh : v => Math.max(v, 0);
  const fits = filters(w, config, ids), features = Float32Array.from(fits, f => act(f.fit));
  const gates = [];
  let x = features;
  for (let l = 0; l < config.n_highway; l++) {         // change a little, carry the rest
    const name = `chars.highway.layers.${l}`;
    const y = product(w[name + '.weight'], x, w[name + '.bias']);
    const gate = y.slice(x.length).map(sigmoid);
    x = x.map((v, d) => v + gate[d] * (Math.max(y[d], 0) - v));
    gates.push(gate);
  }
  const project = w['chars.proj.weight'];
  const vector = project ? product(project, x, w['chars.proj.bias']) : x;
  return {fits, features, gates, highway: x, vector};
}

// ---- recurrence: one layer, one direction -------------------------------------------------

const clip = (v, limit) => limit ? Math.min(Math.max(v, -limit), limit) : v;

// `inputs` in the order in which they are read; the outputs come in the same order.
function lstm(w, name, inputs, config) {
  const part = o => w[`${name}.${o}_l0`], C = config.hidden_dim;
  let h = new Float32Array(config.proj_dim), c = new Float32Array(C);
  return inputs.map(x => {
    const z = product(part('weight_ih'), x, part('bias_ih'));
    const u = product(part('weight_hh'), h, part('bias_hh'));
    const gate = (k, i) => z[k * C + i] + u[k * C + i];       // input, forget, candidate, output
    c = c.map((v, i) => sigmoid(gate(1, i)) * v + sigmoid(gate(0, i)) * Math.tanh(gate(2, i)));
    c = c.map(v => clip(v, config.cell_clip));
    const y = c.map((v, i) => sigmoid(gate(3, i)) * Math.tanh(v));
    h = part('weight_hr') ? product(part('weight_hr'), y) : y;
    return h = h.map(v => clip(v, config.proj_clip));
  });
}

// ---- ELMo ---------------------------------------------------------------------------------

export class Elmo {
  constructor(tensors, config) { Object.assign(this, {tensors, config, known: new Map()}); }

  static async load(folder) {
    const files = ['model.safetensors', 'config.json'].map(o => read(folder + o));
    const [tensors, {config}] = await Promise.all(files);
    return new Elmo(tensors, config);
  }

  // A token has the same vector wherever it stands, so it is computed once.
  token(word) {
    const {tensors, config, known} = this;
    const ids = charIds(word, config.max_chars);
    if (!known.has(word)) known.set(word, charCNN(tensors, config, ids).vector);
    return known.get(word);
  }

  // For each layer the forward and the backward states of all tokens, marks included.
  states(tokens) {
    const {tensors, config} = this;
    const x = tokens.map(o => this.token(o)), all = [[x, x]];
    let f = x, b = [...x].reverse();                   // the backward direction reads from the end
    for (let l = 0; l < config.n_layers; l++) {
      const add = l && config.residual ? (y, x) => y.map((v, d) => v + x[d]) : y => y;
      f = lstm(tensors, `lstm.fwd.${l}`, f, config).map((y, t) => add(y, f[t]));
      b = lstm(tensors, `lstm.bwd.${l}`, b, config).map((y, t) => add(y, b[t]));
      all.push([f, [...b].reverse()]);
    }
    return all;
  }

  // For each layer and each word one vector: its forward half, then its backward half.
  layers(words) {
    if (!words.length) return Array.from({length: this.config.n_layers + 1}, () => []);
    const word = (f, b, t) => Float32Array.of(...f[t + 1], ...b[t + 1]);       // not the marks
    return this.states([BOS, ...words, EOS]).map(([f, b]) =>
      words.map((_, t) => word(f, b, t)));
  }
}

export const dot = (a, b) => a.reduce((sum, v, d) => sum + v * b[d], 0);
export const cosine = (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b) || 1);

// ---- influence: how much each other word moved a word's vector -----------------------------

// The mean of a word's layers, with which an untrained mix begins.
const mixed = (layers, t) => layers[0][t].map((_, d) =>
  layers.reduce((sum, l) => sum + l[t][d], 0) / layers.length);

// 1 − cosine of the vector of the word at `t` with and without each other word; 0 at `t` itself.
export function influence(elmo, words, t) {
  const whole = mixed(elmo.layers(words), t);
  return words.map((_, i) => i === t ? 0
    : 1 - cosine(whole, mixed(elmo.layers(words.filter((_, j) => j !== i)), i < t ? t - 1 : t)));
}
