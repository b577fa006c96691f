// The model at work beside the page: a question comes in, an answer goes out.
import {Elmo, read} from './elmo.js';
import {NEEDS, Occurrences, PANELS} from './answers.js';
import {Speaker} from './speak.js';

const here = name => new URL(name, import.meta.url).href;
const MODEL = here('mini-en/');

const load = {
  elmo: () => Elmo.load(MODEL),
  speaker: async () => Speaker.load(MODEL, await get('elmo')),
  stored: async () => new Occurrences(await read(here('occurrences.safetensors')),
    await read(here('occurrences.json'))),
};

// The page hears how much of the files has come.
const plain = self.fetch, files = {come: 0, total: 0};
self.fetch = async url => {
  const response = await plain(url);
  if (!response.ok) return response;
  files.total += Number(response.headers.get('content-length'));
  return new Response(response.body.pipeThrough(new TransformStream({transform(piece, out) {
    files.come += piece.length;
    self.postMessage(files);
    out.enqueue(piece);
  }})));
};

// Each part is loaded when it is first needed, and again where that failed.
const parts = {};
function get(name) {
  parts[name] ||= load[name]().catch(error => { delete parts[name]; throw error; });
  return parts[name];
}

self.onmessage = async ({data: question, ports: [port]}) => {
  try {
    const needed = ['elmo', ...NEEDS[question.panel] || []];
    const values = await Promise.all(needed.map(get));
    const model = Object.fromEntries(needed.map((name, i) => [name, values[i]]));
    port.postMessage({answer: PANELS[question.panel]?.(model, question)});
  } catch (error) {
    port.postMessage({failed: error.message});
  }
};
