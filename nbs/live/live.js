// The explainer: sentences to edit, words to choose, four panels. The model works in worker.js; the
// answers to the examples are stored, so nothing is loaded before a reader asks for more.
import {tokenize} from './elmo.js';
import {keyOf, same} from './answers.js';
import {clamp, drawInside, drawMap, drawMix, drawReaders, drawSenses, tag} from './draw.js';

const here = name => new URL(name, import.meta.url).href;
const TABS = {map: 'Word by word', senses: 'Senses', readers: 'Two readers', inside: 'Inside'};
const MOST = 60;                           // words of all sentences together
const PAUSE = 120;                         // milliseconds from the last key to the question
const press = (text, onclick, more) => tag('button', {type: 'button', text, onclick, ...more});

function range(name, max, step, value, oninput) {
  const input = tag('input', {type: 'range', min: 0, max, step, value, 'aria-label': name,
    oninput: () => oninput(Number(input.value))});
  return tag('label', {class: 'elmo-range', text: name + ' '}, input);
}

// Where the word at `t` is after an edit: it moves with the words behind the edit.
export function follow(before, after, t) {
  const most = Math.min(before.length, after.length);
  let start = 0, end = 0;
  while (start < most && before[start] === after[start]) start++;
  while (end < most - start && before.at(-1 - end) === after.at(-1 - end)) end++;
  const behind = t >= start && t >= before.length - end;
  const moved = behind ? t + after.length - before.length : t;
  return clamp(moved, 0, Math.max(0, after.length - 1));
}

// The stored answers, and the worker for all other questions; one question at a time.
class Model {
  constructor(stored) { Object.assign(this, {stored, id: 0}); }

  known(question) { return this.stored.answers[keyOf(question)]; }

  ask(question) {
    return new Promise((resolve, reject) => {
      const id = ++this.id;
      const fail = text => { this.worker.terminate(); this.worker = null; reject(new Error(text)); };
      this.worker ||= new Worker(here('worker.js'), {type: 'module'});
      this.worker.onerror = e => fail(e.message || 'its scripts could not be loaded');
      this.worker.onmessage = ({data}) => {
        if (data.id !== id) return;
        if (data.failed) fail(data.failed);
        else resolve(data.answer);
      };
      this.worker.postMessage({id, question});
    });
  }
}

class Explainer {
  constructor(place, stored) {
    Object.assign(this, {place, stored, model: new Model(stored), were: {}, layer: 0, step: 1e9,
      weights: [1, 1, 1], gamma: 1, wrong: -1});
    this.buttons = stored.examples.map(o => press(o.label, () => this.example(o)));
    this.rows = [0, 1, 2].map(i => this.row(i));
    this.tabs = Object.entries(TABS).map(([panel, text]) =>
      press(text, () => this.turn({panel}), {role: 'tab', 'data-panel': panel}));
    this.said = tag('p', {class: 'elmo-said', role: 'status'});
    this.beside = tag('div', {class: 'elmo-beside'});
    this.panel = tag('div', {class: 'elmo-panel', role: 'tabpanel', 'aria-label': 'View'});
    place.replaceChildren(tag('div', {class: 'elmo-views'},
      tag('div', {class: 'elmo-left'},
        tag('div', {class: 'elmo-examples', role: 'group', 'aria-label': 'Examples'}, ...this.buttons,
          press('a word that it gets wrong', () => this.failure())),
        tag('p', {class: 'elmo-hint', text: 'Change a sentence, or choose a word below it.'}),
        tag('ol', {class: 'elmo-sentences'}, ...this.rows.map(o => o.item)), this.said),
      tag('div', {class: 'elmo-right'},
        tag('div', {class: 'elmo-tabs', role: 'tablist', 'aria-label': 'Views',
          onkeydown: e => this.walk(e, this.tabs)}, ...this.tabs),
        this.panel,
        tag('p', {class: 'elmo-keep'}, press('Copy link', () => this.copy()),
          press('Save picture', () => this.save()))),
      this.beside));
    window.addEventListener('hashchange', () => this.restore());
    if (!this.restore()) {
      const {example} = place.dataset;
      const first = stored.examples.find(o => o.label === example) || stored.examples[0];
      this.example({...first, panel: this.place.dataset.panel || first.panel || 'map'});
      if (this.state.panel === 'map') this.play(() => this.layer, v => this.goTo(v), 2, .02);
    }
    new ResizeObserver(() => {
      if (this.answer && Math.abs(this.panel.clientWidth - this.room) > 8) this.show();
    }).observe(this.panel);
  }

  // ---- what the reader does -----------------------------------------------------------------

  row(i) {
    const later = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.typed(), PAUSE);
    };
    const input = tag('input', {type: 'text', 'aria-label': `Sentence ${i + 1}`, spellcheck: 'false',
      placeholder: 'another sentence', autocomplete: 'off', oninput: later});
    const words = tag('div', {class: 'elmo-words', role: 'toolbar',
      'aria-label': `Words of sentence ${i + 1}`, onkeydown: e => this.walk(e, [...words.children])});
    return {input, words, tokens: [], item: tag('li', {}, input, words)};
  }

  example({label, sentences, chosen, panel = this.state.panel}) {
    this.rows.forEach((row, i) => { row.input.value = sentences[i] || ''; });
    this.read();
    this.turn({label, chosen, panel});
  }

  // A labelled occurrence whose nearest neighbour has another sense, and that neighbour.
  failure() {
    const {n, wrong} = this.stored.failures;
    this.wrong = (this.wrong + 1) % wrong.length;
    const [asked, near] = wrong[this.wrong], sense = o => o.sense.replace('/', ': ');
    this.example({sentences: [asked.text, near.text], chosen: [0, asked.t], panel: 'senses'});
    this.say(`Sentence 1 is about “${sense(asked)}”. Of the occurrences that people labelled, sentence 2 `
      + `is the nearest, and it is about “${sense(near)}”. This happens for ${wrong.length} of ${n}.`);
  }

  typed() {
    const [s, t] = this.state.chosen, before = this.rows[s].tokens;
    this.read();
    this.turn({label: '', chosen: [s, follow(before, this.rows[s].tokens, t)]});
  }

  // Arrow keys go from one button of a group to the next.
  walk(event, all) {
    const now = all.indexOf(document.activeElement);
    const keys = new Map([['ArrowRight', now + 1], ['ArrowLeft', now - 1], ['Home', 0],
      ['End', all.length - 1]]);
    const to = keys.get(event.key);
    if (!all[to]) return;
    event.preventDefault();
    all.forEach((o, i) => { o.tabIndex = i === to ? 0 : -1; });
    all[to].focus();
  }

  // ---- what is seen -------------------------------------------------------------------------

  say(text) { this.said.textContent = text; }

  // The tokens of all sentences, at most MOST, and a button for each.
  read() {
    let left = 0, room = MOST;
    this.rows.forEach((row, i) => {
      const all = tokenize(row.input.value);
      row.tokens = all.slice(0, room);
      room -= row.tokens.length;
      left += all.length - row.tokens.length;
      row.words.replaceChildren(...row.tokens.map((text, t) =>
        press(text, () => this.turn({chosen: [i, t]}))));
    });
    this.limit = left ? `Only the first ${MOST} words are read; ${left} are left out.` : '';
    this.say(this.limit);
  }

  // The state is {label, panel, chosen}; the sentences are in the rows.
  turn(change) {
    const moved = this.state && !('panel' in change && 'chosen' in change);
    this.state = {...this.state, ...change};
    const {label, panel, chosen: [s, t]} = this.state, word = this.rows[s].tokens[t];
    this.buttons.forEach(o => o.setAttribute('aria-pressed', o.textContent === label));
    for (const o of this.tabs) {
      o.setAttribute('aria-selected', o.dataset.panel === panel);
      o.tabIndex = o.dataset.panel === panel ? 0 : -1;
    }
    this.rows.forEach((row, i) => [...row.words.children].forEach((button, j) => {
      const on = i === s && j === t;
      button.setAttribute('aria-pressed', on);
      button.classList.toggle('same', !on && word !== undefined && same(row.tokens[j], word));
      button.tabIndex = on || (i !== s && j === 0) ? 0 : -1;
    }));
    if (moved) history.replaceState(null, '', this.address());
    this.refresh();
  }

  // Only the latest question is asked; what was overtaken is dropped.
  async refresh() {
    this.again = true;
    if (this.busy) return;
    this.busy = true;
    while (this.again) {
      this.again = false;
      const {panel, chosen} = this.state, sentences = this.rows.map(o => o.tokens);
      while (sentences.length > 1 && !sentences.at(-1).length) sentences.pop();
      const question = {panel, sentences, chosen}, known = this.model.known(question);
      try {
        const empty = !sentences[chosen[0]]?.length;
        if (!empty && !known && !this.model.worker) this.say('Loading the model …');
        const answer = empty ? null : known || await this.model.ask(question);
        if (/^Loading|^The model/.test(this.said.textContent)) this.say(this.limit);
        Object.assign(this, {question, answer});
        if (!this.again) this.show();
      } catch (error) {
        this.say(`The model could not be loaded (${error.message}). The next change tries again.`);
      }
    }
    this.busy = false;
  }

  show() {
    this.stop();
    this.room = this.panel.clientWidth;
    this.width = Math.round(clamp(this.room, 280, 720));
    this.beside.replaceChildren();
    const {panel} = this.question;
    this.panel.replaceChildren(...this.answer ? this[panel](this.answer, this.question)
      : [tag('p', {text: 'This sentence has no words yet.'})]);
  }

  // A control moves by itself to its end; where readers want no motion, it is there at once.
  play(now, set, end, by) {
    if (this.stop()) return;
    if (matchMedia('(prefers-reduced-motion: reduce)').matches) { set(end); return; }
    if (now() >= end) set(0);
    this.playing = setInterval(() => {
      set(Math.min(end, now() + by));
      if (now() >= end) this.stop();
    }, by < 1 ? 30 : 400);
  }

  stop() {
    const was = this.playing;
    clearInterval(was);
    this.playing = null;
    return Boolean(was);
  }

  player(name, now, set, end, by) {
    const slider = range(name, end, by < 1 ? .01 : 1, now(), v => { this.stop(); set(v); });
    return tag('p', {class: 'elmo-control'}, press('▶', () => this.play(now, set, end, by),
      {'aria-label': `Play or pause: ${name}`}), slider);
  }

  // ---- the panels ---------------------------------------------------------------------------

  map({cosines}, {sentences, chosen: [s, t]}) {
    const words = sentences.flatMap((tokens, i) => tokens.map((word, j) => ({s: i, t: j, word})));
    const me = words.findIndex(o => o.s === s && o.t === t);
    const at = (l, i, j) => i === j ? 1 : cosines[l][Math.max(i, j) * (Math.max(i, j) - 1) / 2
      + Math.min(i, j)] / 100;
    const pairs = this.compared(words, me, at);
    const {image, colour} = drawMap({words, me, pairs, width: this.width,
      choose: (i, j) => this.turn({chosen: [i, j]})});
    const control = this.player('layer', () => this.layer, v => this.goTo(v), 2, .02);
    this.goTo = layer => {
      const low = Math.min(1, Math.floor(layer)), share = layer - low;
      this.layer = layer;
      control.querySelector('input').value = layer;
      colour((i, j) => at(low, i, j) * (1 - share) + at(low + 1, i, j) * share);
    };
    this.goTo(this.layer);
    this.beside.replaceChildren(this.table(words, me, pairs, at));
    return [control, tag('div', {class: 'elmo-scroll', tabindex: 0, role: 'group', 'aria-label': 'Map'}, image)];
  }

  // The same word elsewhere; in a sentence without it, the word whose letters are most alike.
  compared(words, me, at) {
    return [0, 1, 2].flatMap(s => {
      const all = words.map((o, i) => i).filter(i => words[i].s === s && i !== me);
      const equal = all.filter(i => same(words[i].word, words[me].word));
      if (equal.length || s === words[me].s) return equal;
      return all.sort((i, j) => at(0, me, j) - at(0, me, i)).slice(0, 1);
    });
  }

  table(words, me, pairs, at) {
    const cell = c => tag('td', {}, tag('span', {class: 'bar', style: `--share: ${clamp(c, 0, 1)}`}),
      tag('span', {class: 'number', text: c.toFixed(2)}));
    const head = ['cosine with', 'layer 0: letters', 'layer 1', 'layer 2'];
    return tag('table', {class: 'elmo-cosines'},
      tag('caption', {text: `“${words[me].word}” in sentence ${words[me].s + 1}`}),
      tag('thead', {}, tag('tr', {}, ...head.map(text => tag('th', {scope: 'col', text})))),
      tag('tbody', {}, ...pairs.map(i => tag('tr', {}, tag('th', {scope: 'row'},
        tag('b', {text: words[i].word}), ` in sentence ${words[i].s + 1}`),
      ...[0, 1, 2].map(l => cell(at(l, i, me)))))));
  }

  senses(answer) {
    const {word, dots, near, n} = answer, line = tag('p', {class: 'elmo-dot',
      text: 'Your sentences are the numbered dots. Point at a dot to read its sentence.'});
    const read = o => line.replaceChildren(...this.marked(o));
    const among = `${n.toLocaleString('en')} ${dots.length ? `occurrences of “${word}”` : 'words'}`;
    const list = tag('ol', {class: 'elmo-neighbours'}, ...near.map(o =>
      tag('li', {}, tag('span', {class: 'number', text: o.cosine.toFixed(2)}), ' ', ...this.marked(o))));
    this.beside.replaceChildren(
      tag('p', {class: 'elmo-title', text: `Nearest among ${among} in novels and WikiText-2`}), list);
    if (dots.length) return [drawSenses(answer, {width: this.width, were: this.were, read}), line];
    const some = `Dots are stored for: ${this.stored.words.join(', ')}.`;
    return [tag('p', {text: `No occurrences of “${word}” are stored. ${some}`})];
  }

  // A sentence with its word marked and the sense that people gave to it.
  marked({text, t, sense}) {
    const words = text.split(' ');
    return [words.slice(0, t).join(' ') + ' ', tag('mark', {text: words[t]}),
      ' ' + words.slice(t + 1).join(' '), ...sense ? [tag('small', {text: ` (${sense})`})] : []];
  }

  readers(answer, {sentences, chosen: [s, t]}) {
    this.beside.replaceChildren(tag('p', {text: `“${sentences[s][t]}” is blanked: neither side reads it. `
      + 'Choose another word to blank that one. A word with ? is not in the vocabulary.'}));
    return [drawReaders(answer, {t, width: this.width, choose: j => this.turn({chosen: [s, j]})})];
  }

  inside(answer, {sentences, chosen: [s, t]}) {
    const words = sentences[s], mixed = tag('div'), changed = answer.changed.map(x => Math.round(100 * x));
    this.beside.replaceChildren(tag('p', {text: `The way of “${words[t]}” from its letters to its vector. `
      + `Its highway replaces ${changed.join(' and ')} % of the numbers and carries the rest.`}));
    const {image, show} = drawInside(answer, {words, t, width: this.width});
    const set = step => { this.step = step; show(step); player.querySelector('input').value = step; };
    const now = () => Math.min(this.step, words.length);
    const player = this.player('words read', now, v => set(v), words.length, 1);
    const mix = () => {
      const total = this.weights.reduce((a, b) => a + b) || 1, share = this.weights.map(w => w / total);
      const form = a => share.reduce((sum, x, i) => sum + x * share.reduce((r, y, j) => r + y * a[i][j], 0), 0);
      const said = answer.others.map(o => `with sentence ${o.s + 1}: `
        + (form(o.cross) / Math.sqrt(form(answer.own) * form(o.own) || 1)).toFixed(2)).join(', ');
      mixed.replaceChildren(drawMix(answer.layers, share, this.gamma, this.width), tag('p', {text:
        `s = ${share.map(x => x.toFixed(2)).join(', ')}${said && `. Cosine of the mix ${said}`}.`}));
    };
    const sliders = this.weights.map((w, l) =>
      range(`s${l}`, 1, .01, w, v => { this.weights[l] = v; mix(); }));
    sliders.push(range('γ', 2, .01, this.gamma, v => { this.gamma = v; mix(); }));
    set(now());
    mix();
    return [image, player, tag('p', {class: 'elmo-control'}, ...sliders), mixed];
  }

  // ---- what is kept -------------------------------------------------------------------------

  address() {
    const {panel, chosen} = this.state, texts = this.rows.map(o => o.input.value);
    return '#elmo=' + encodeURIComponent(JSON.stringify([panel, ...chosen, ...texts]));
  }

  // From an address as above; one that leads to the section of a panel opens that panel.
  restore() {
    const [section, stored] = location.hash.slice(1).split('elmo=');
    const named = Object.keys(TABS).find(o => TABS[o].toLowerCase().replaceAll(' ', '-') === section);
    if (named) this.place.dataset.panel = named;
    if (named && this.state) this.turn({panel: named});
    if (!stored) return false;
    try {
      const [name, s, t, ...sentences] = JSON.parse(decodeURIComponent(stored));
      if (!(name in TABS) || !this.rows[s] || !(t >= 0)) return false;
      this.example({sentences, chosen: [s, t], panel: name, label: ''});
      this.turn({chosen: [s, clamp(t, 0, Math.max(0, this.rows[s].tokens.length - 1))], panel: name});
      return true;
    } catch { return false; }
  }

  async copy() {
    history.replaceState(null, '', this.address());
    try {
      await navigator.clipboard.writeText(location.href);
      this.say('The link is copied.');
    } catch { this.say('The link is in the address bar.'); }
  }

  // The picture of the panel as PNG, twice as large.
  save() {
    const shown = this.panel.querySelector('svg'), {width, height} = shown.viewBox.baseVal;
    const copy = shown.cloneNode(true), canvas = tag('canvas', {width: 2 * width, height: 2 * height});
    const style = getComputedStyle(shown), paper = getComputedStyle(document.body).backgroundColor;
    copy.setAttribute('style', `color: ${style.color}; background: ${paper}; font-family: sans-serif`);
    copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
    const image = new Image();
    image.onload = () => {
      canvas.getContext('2d').drawImage(image, 0, 0, 2 * width, 2 * height);
      tag('a', {href: canvas.toDataURL(), download: `elmo-${this.state.panel}.png`}).click();
    };
    image.src = 'data:image/svg+xml,' + encodeURIComponent(new XMLSerializer().serializeToString(copy));
  }
}

export async function start(place) {
  const response = await fetch(here('stored.json'));
  if (!response.ok) throw new Error(`stored.json: ${response.status}`);
  return new Explainer(place, await response.json());
}
