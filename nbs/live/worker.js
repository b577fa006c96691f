// The model at work beside the page: a question comes in, an answer goes out.
import {Elmo, readTensors} from './elmo.js';
import {NEEDS, Occurrences, PANELS} from './answers.js';
import {Speaker} from './speak.js';

const here = name => new URL(name, import.meta.url).href;
const MODEL = here('mini-en/');

async function read(name, how) {
  const response = await fetch(here(name));
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response[how]();
}

const load = {
  elmo: () => Elmo.load(MODEL),
  speaker: async () => Speaker.load(MODEL, await get('elmo')),
  stored: async () => new Occurrences(readTensors(await read('occurrences.safetensors', 'arrayBuffer')),
    await read('occurrences.json', 'json')),
};

// Each part is loaded when it is first needed, and again where that failed.
const parts = {};
function get(name) {
  parts[name] ||= load[name]().catch(error => { delete parts[name]; throw error; });
  return parts[name];
}

self.onmessage = async ({data: {id, question}}) => {
  try {
    const needed = ['elmo', ...NEEDS[question.panel]];
    const values = await Promise.all(needed.map(get));
    const model = Object.fromEntries(needed.map((name, i) => [name, values[i]]));
    self.postMessage({id, answer: PANELS[question.panel](model, question)});
  } catch (error) {
    self.postMessage({id, failed: error.message});
  }
};
