// The explainer: sentences to edit, words to choose, and views of them, one in each box of a page. Where
// a page has a box for the sentences alone, the others show no inputs. The model works in worker.js; the
// answers to the examples are stored, so nothing is loaded at first.
import {read, tokenize} from './elmo.js';
import {keyOf, same} from './answers.js';
import {clamp, cut, drawDirections, drawElmo, drawInfluence, drawLetters, drawMap, drawMix, drawNext,
  drawReaders, drawSenses, tag} from './draw.js';

const here = name => new URL(name, import.meta.url).href;
const MOST = 60;                           // words of all sentences together
const PAUSE = 120;                         // milliseconds from the last key to the question
const LONGEST = 40;                        // letters of a word that are shown
const LAYERS = ['layer 0: letters', 'layer 1', 'layer 2'];
const PANELS = ['glide', 'input', 'drawing', 'bars', 'letters', 'directions', 'mix', 'map', 'senses',
  'readers', 'influence', 'write'];
const ASKED = {bars: 'map', letters: 'inside', directions: 'inside', mix: 'inside'};
const press = (text, onclick, more) => tag('button', {type: 'button', text, onclick, ...more});
const say = (place, text) => place.textContent === text || (place.textContent = text);

function range(name, [min, max, step], value, oninput) {
  const input = tag('input', {type: 'range', min, max, step, value, 'aria-label': name,
    oninput: () => oninput(Number(input.value))});
  return tag('label', {class: 'elmo-range', text: name + ' '}, input);
}

// Arrow keys go from one button of a group to the next.
function walk(event, all) {
  const now = all.indexOf(document.activeElement);
  const to = {ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: all.length - 1}[event.key];
  if (!all[to]) return;
  event.preventDefault();
  all.forEach((o, i) => { o.tabIndex = i === to ? 0 : -1; });
  all[to].focus();
}

const least = (all, cost) => all.reduce((a, b) => cost(b) < cost(a) ? b : a);

// Did the reader type in the word at `t`, and nowhere else?
export function retyped(before, after, t) {
  const others = before.every((o, i) => i === t || o === after[i]);
  if (!others || before.length !== after.length || !after[t]) return false;
  const [a, b] = [before[t], after[t]], most = Math.min(a.length, b.length);
  let start = 0, end = 0;
  while (start < most && a[start] === b[start]) start++;
  while (end < most - start && a.at(-1 - end) === b.at(-1 - end)) end++;
  return start + end >= Math.max(1, most - 1);
}

// Where `word` is after an edit of its sentence: as far from the beginning or from the end as before.
// Where it is gone, the longest word that the other sentences share; without one, the longest of all.
export function follow(word, t, before, after, others) {
  const places = [...after.keys()], own = places.filter(i => same(after[i], word));
  const moved = i => Math.min(Math.abs(i - t), Math.abs(after.length - i - before.length + t));
  if (own.length) return least(own, moved);
  const shared = places.filter(i => /\p{L}/u.test(after[i]) && others.some(o => same(o, after[i])));
  const some = shared.length ? shared : places;
  return some.length ? least(some, i => -after[i].length) : 0;
}

// What is in an address; null where it is none of ours.
export function parse(hash) {
  try {
    const [panel, s, t, ...texts] = JSON.parse(decodeURIComponent(hash.split('#elmo=')[1]));
    const right = PANELS.includes(panel) && [0, 1, 2].includes(s) && Number.isInteger(t) && t >= 0
      && texts.length && texts.every(o => typeof o === 'string');
    return right ? {panel, chosen: [s, t], texts} : null;
  } catch { return null; }
}

// The stored answers, and the worker for all other questions.
class Model {
  constructor({answers}) { this.answers = answers; }

  known(question) {
    if (question.panel === 'drawing') return {};
    const key = keyOf(question);
    return Object.hasOwn(this.answers, key) ? this.answers[key] : null;
  }

  // The worker loads the model while the reader is still typing.
  begin() {
    if (!this.worker) this.ask({}).catch(() => {});
  }

  ask(question) {
    if (!this.worker) this.start();
    const {port1, port2} = new MessageChannel();
    const answer = new Promise((resolve, reject) => {
      port1.onmessage = ({data: {answer, failed}}) => failed ? reject(new Error(failed)) : resolve(answer);
    });
    this.worker.postMessage(question, [port2]);
    return Promise.race([answer, this.broken]);
  }

  start() {
    const worker = this.worker = new Worker(here('worker.js'), {type: 'module'});
    worker.onmessage = ({data: {come, total}}) => this.heard(come / total);
    this.broken = new Promise((_, reject) => {
      worker.onerror = e => {
        this.worker = null;
        reject(new Error(e.message || 'its scripts could not be loaded'));
      };
    });
  }
}

// What all boxes of a page share: the sentences, the chosen word, the model.
class Explainer {
  constructor(places, stored) {
    Object.assign(this, {stored, model: new Model(stored), texts: ['', '', ''], tokens: [[], [], []],
      chosen: [0, 0], label: '', note: '', wrong: -1, views: []});
    this.apart = places.some(o => o.dataset.panel === 'input');
    this.model.heard = share => this.views.forEach(o => { o.bar.value = clamp(share || 0, 0, 1); });
    this.example(this.find(places[0].dataset.example) || stored.examples[0]);
    this.views = places.map(place => new View(this, place));
    window.addEventListener('hashchange', () => this.restore());
    if (!this.restore()) this.changed();
    document.querySelectorAll('.elmo-tour').forEach(list => this.tour(list));
  }

  find(label) { return this.stored.examples.find(o => o.label === label); }

  view(panel) { return this.views.find(o => o.panel === panel); }

  example({label = '', sentences, chosen, note = ''}) {
    [0, 1, 2].forEach(i => { this.texts[i] = sentences[i] || ''; });
    this.read();
    const last = Math.max(0, this.tokens[chosen[0]].length - 1);
    Object.assign(this, {label, chosen: [chosen[0], Math.min(chosen[1], last)], note});
    this.word = this.at();
    this.changed();
  }

  at() { return this.tokens[this.chosen[0]][this.chosen[1]] ?? ''; }

  // A labelled occurrence whose nearest neighbour has another sense, and that neighbour.
  failure() {
    const {n, wrong} = this.stored.failures;
    this.wrong = (this.wrong + 1) % wrong.length;
    const [asked, near] = wrong[this.wrong], sense = o => o.sense.replace('/', ': ');
    this.example({sentences: [asked.text, near.text], chosen: [0, asked.t], note:
      `Sentence 1 is about “${sense(asked)}”. Of the occurrences that people labelled, sentence 2 is `
      + `the nearest, and it is about “${sense(near)}”. This happens for ${wrong.length} of ${n}.`});
  }

  type(i, text, view) {
    const [s, t] = this.chosen, before = this.tokens[s];
    this.texts[i] = text;
    this.read();
    const after = this.tokens[s], others = this.tokens.flatMap((o, j) => j === s ? [] : o);
    if (same(before[t] ?? '', this.word) && retyped(before, after, t)) this.word = after[t];
    this.chosen = [s, follow(this.word, t, before, after, others)];
    this.word ||= this.at();
    const now = this.at(), shared = others.some(o => same(o, now));
    Object.assign(this, {label: '', note: !now || same(now, this.word) ? ''
      : `“${cut(this.word, 20)}” is not in sentence ${s + 1} any more. ` + (shared
        ? `Its word “${now}” is in another one, too.` : 'No word of it is in another one.')});
    this.kept(view);
    this.changed();
  }

  choose(s, t, view) {
    Object.assign(this, {chosen: [s, t], note: ''});
    this.word = this.at();
    this.kept(view);
    this.changed();
  }

  // The tokens of all sentences, at most MOST.
  read() {
    let left = 0, room = MOST;
    this.tokens = this.texts.map((text, i) => {
      const all = tokenize(text), some = all.slice(0, room), old = this.tokens[i];
      room -= some.length;
      left += all.length - some.length;
      return some.join('\n') === old.join('\n') ? old : some;
    });
    this.limit = left ? `Only the first ${MOST} words are read; ${left} are left out.` : '';
  }

  changed() { this.views.forEach(o => o.changed()); }

  // What is seen, as the address of the page.
  kept({panel}) {
    const seen = JSON.stringify([panel, ...this.chosen, ...this.texts]);
    history.replaceState(null, '', '#elmo=' + encodeURIComponent(seen));
  }

  restore() {
    const found = parse(location.hash);
    if (!found) return false;
    this.example({sentences: found.texts, chosen: found.chosen});
    const view = this.view(found.panel);
    if (view && view !== this.views[0]) view.place.scrollIntoView();
    return true;
  }

  // The steps of a list, one at a time at the foot of the screen; each sets its example in its view.
  tour(list) {
    const steps = [...list.children], text = tag('p', {role: 'status'});
    const go = at => {
      bar.hidden = !steps[at];
      if (bar.hidden) { begin.focus(); return; }
      const {panel, example} = steps[at].dataset;
      this.example(this.find(example));
      say(text, `${at + 1} of ${steps.length}. ${steps[at].textContent.trim()}`);
      back.onclick = () => go(at - 1);
      next.onclick = () => go(at + 1);
      back.disabled = !at;
      say(next, steps[at + 1] ? 'Next' : 'Done');
      this.view(panel).place.scrollIntoView();
    };
    const back = press('Back'), next = press('Next'), end = press('End the tour', () => go(-1));
    const bar = tag('div', {class: 'elmo-live elmo-steps', role: 'region', 'aria-label': 'Tour',
      hidden: ''}, text, tag('p', {class: 'elmo-keep'}, back, next, end));
    const begin = press('Take the tour', () => { go(0); next.focus({preventScroll: true}); });
    list.previousElementSibling.append(begin);
    document.body.append(bar);
  }
}

// A box of a page: sentences to edit, and what its panel shows of them.
class View {
  constructor(all, place) {
    const {panel} = place.dataset, whole = panel === 'bars', alone = panel === 'input';
    Object.assign(this, {all, place, panel, were: {}, layer: 0, weights: [1, 1, 1], gamma: 1,
      written: [], temperature: 1});
    const own = all.stored.examples.filter(o => (o.panel || 'bars') === panel);
    if (place.dataset.more) own.push(...place.dataset.more.split(' ').map(o => all.find(o)));
    this.buttons = own.map(o => press(o.label, () => all.example(o)));
    if (whole) this.buttons.push(press('a word that it gets wrong', () => all.failure()));
    this.rows = (whole ? [0, 1, 2] : alone || !all.apart ? [null] : []).map(i => this.row(i));
    this.heads = tag('p', {class: 'elmo-heads'});
    this.numbers = [0, 1, 2].map(i => press(i + 1, () => this.go(i),
      {'aria-label': `Go to sentence ${i + 1}`}));
    this.said = tag('span', {class: 'elmo-said', role: 'status'});
    this.room = tag('div', {class: 'elmo-panel', role: 'group', 'aria-label': 'View'});
    this.bar = tag('progress', {max: 1, 'aria-label': 'Loading the model', hidden: ''});
    this.save = press('Save picture', () => this.picture());
    const numbers = tag('p', {class: 'elmo-numbers', role: 'group', 'aria-label': 'Sentence'},
      'Sentence ', ...this.numbers);
    const rows = tag('ol', {class: 'elmo-sentences'}, ...this.rows.map(o => o.item));
    const above = [whole ? this.heads : numbers, rows];
    const caption = all.apart ? [] : [...place.children].filter(o => o.querySelector('em'));
    place.replaceChildren(this.bar, ...caption, ...this.rows.length ? above : [], ...alone ? [] : [this.room,
      ...own.length ? [tag('p', {class: 'elmo-examples', role: 'group', 'aria-label': 'Examples',
        text: 'Try: '}, ...this.buttons)] : [],
      tag('p', {class: 'elmo-keep'}, press('Copy link', () => this.copy()), this.save, this.said)]);
    if (alone) return;
    new IntersectionObserver(found => {
      this.near = found.at(-1).isIntersecting;
      if (this.near && this.late) this.refresh();
    }, {rootMargin: '200px'}).observe(place);
    new ResizeObserver(() => {
      if (this.answer && Math.abs(this.room.clientWidth - this.drawn) > 8) this.show();
    }).observe(this.room);
    if (panel === 'glide') this.rows[0].input.after(press('Type another one', () => this.retype()));
  }

  // ---- what the reader does -----------------------------------------------------------------

  // Sentence `i`, or where that is null the sentence of the chosen word.
  row(i) {
    const row = {at: () => i ?? this.all.chosen[0]};
    row.input = tag('input', {type: 'text', spellcheck: 'false', placeholder: 'another sentence',
      autocomplete: 'off', class: 'elmo-input', onfocus: () => this.all.model.begin(),
      oninput: () => {
        clearTimeout(row.timer);
        this.typing = null;
        const at = row.at();
        row.timer = setTimeout(() => {
          row.timer = null;
          this.all.type(at, row.input.value, this);
        }, PAUSE);
      }});
    row.words = tag('div', {class: 'elmo-words', role: 'toolbar',
      onkeydown: e => walk(e, [...row.words.children])});
    row.bars = tag('div', {class: 'elmo-bars'});
    const shown = this.all.apart && i !== null ? [row.words] : [row.input, row.words];
    row.item = tag('li', {}, tag('div', {class: 'elmo-edit'}, ...shown), row.bars);
    return row;
  }

  // To the chosen word in sentence `i`, or else to its first word.
  go(i) {
    const {tokens, chosen: [s, t]} = this.all;
    const there = tokens[i].findIndex(o => same(o, tokens[s][t] ?? ''));
    this.all.choose(i, Math.max(0, there), this);
  }

  changed() {
    const {tokens, texts, chosen: [s, t], label, limit, note} = this.all, word = tokens[s][t];
    this.buttons.forEach(o => o.setAttribute('aria-pressed', o.textContent === label));
    if (label) Object.assign(this, {turns: texts.slice(0, 2), typing: null});
    this.numbers.forEach((o, i) => {
      o.disabled = !tokens[i].length && i !== s;
      o.setAttribute('aria-pressed', i === s);
    });
    for (const row of this.rows) {
      const i = row.at();
      if (!row.timer) row.input.value = texts[i];
      row.input.setAttribute('aria-label', `Sentence ${i + 1}`);
      row.words.setAttribute('aria-label', `Words of sentence ${i + 1}`);
      if (row.tokens !== tokens[i] || row.shown !== i) {
        row.words.replaceChildren(...tokens[i].map((o, j) => press(cut(o, LONGEST),
          () => this.all.choose(row.at(), j, this), {class: 'elmo-word'})));
      }
      Object.assign(row, {shown: i, tokens: tokens[i]});
      [...row.words.children].forEach((button, j) => {
        const on = i === s && j === t;
        button.setAttribute('aria-pressed', on);
        button.classList.toggle('same', !on && word !== undefined && same(tokens[i][j], word));
        button.tabIndex = on || (i !== s && j === 0) ? 0 : -1;
      });
    }
    this.written = [];
    this.message = limit || (this.panel === 'bars' ? note : '');
    say(this.said, this.message);
    if (this.panel !== 'input') this.refresh();
  }

  // ---- what is seen -------------------------------------------------------------------------

  question() {
    const {tokens, chosen: [s, t]} = this.all, sentences = [...tokens];
    while (sentences.length > 1 && !sentences.at(-1).length) sentences.pop();
    const chosen = this.panel === 'senses' ? this.dotted(sentences, s, t) : [s, t];
    const asked = {panel: ASKED[this.panel] || this.panel, sentences, chosen};
    const {written, temperature} = this;
    if (this.panel === 'glide') return {panel: 'senses', sentences, chosen: this.held()};
    return this.panel === 'write' && (written.length || temperature !== 1)
      ? {...asked, written, temperature} : asked;
  }

  // The chosen word, or else one of its sentence, or of another, for which dots are stored.
  dotted(sentences, s, t) {
    const places = sentences.flatMap((tokens, i) => tokens.map((o, j) => [i, j]));
    const known = ([i, j]) => this.all.stored.words.includes(sentences[i][j].toLowerCase());
    if (!sentences[s]?.length) return [s, t];
    return [[s, t], ...places.filter(([i]) => i === s), ...places].find(known) || [s, t];
  }

  // The answer of the model; undefined where it could not be loaded, which is said.
  async ask(question) {
    const {model} = this.all;
    this.bar.hidden = false;
    if (!model.ready) say(this.said, 'Loading the model …');
    try {
      const answer = await model.ask(question);
      model.ready = true;
      say(this.said, this.message);
      return answer;
    } catch (error) {
      say(this.said, `The model could not be loaded (${error.message}). The next change tries again.`);
    } finally { this.bar.hidden = true; }
  }

  // Only the latest question is asked; what was overtaken is dropped.
  async refresh() {
    this.again = true;
    if (this.busy) return;
    this.busy = true;
    while (this.again) {
      this.again = false;
      const question = this.question(), known = this.all.model.known(question);
      const empty = !question.sentences[question.chosen[0]]?.length;
      this.late = !empty && !known && !this.near;
      this.place.classList.toggle('elmo-old', !empty && !known && !this.late);
      if (this.late) break;
      const answer = empty ? null : known || await this.ask(question);
      if (answer === undefined || this.again) continue;
      Object.assign(this, {asked: question, answer});
      this.show();
    }
    this.busy = false;
  }

  show() {
    this.stop();
    this.drawn = this.room.clientWidth;
    this.width = Math.round(clamp(this.drawn, 280, this.panel === 'glide' ? 1000 : 720));
    this.place.classList.remove('elmo-old');
    this.room.replaceChildren(...this.answer ? this[this.panel](this.answer, this.asked)
      : [tag('p', {text: 'This sentence has no words yet.'})]);
    if (!this.answer) this.rows.forEach(row => row.bars.replaceChildren());
    this.save.hidden = !this.room.querySelector('svg');
  }

  // All pictures of the panel, one below the other, as one PNG, twice as large.
  async picture() {
    const all = [...this.room.querySelectorAll('svg')], boxes = all.map(o => o.viewBox.baseVal);
    const width = Math.max(...boxes.map(o => o.width)), paper = getComputedStyle(document.body);
    const height = boxes.reduce((sum, o) => sum + o.height, 0);
    const canvas = tag('canvas', {width: 2 * width, height: 2 * height}), pen = canvas.getContext('2d');
    pen.fillStyle = paper.backgroundColor;
    pen.fillRect(0, 0, 2 * width, 2 * height);
    let y = 0;
    for (const [i, shown] of all.entries()) {
      const copy = shown.cloneNode(true), image = new Image();
      copy.setAttribute('style', `color: ${getComputedStyle(shown).color}; font-family: sans-serif`);
      copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
      image.src = 'data:image/svg+xml,' + encodeURIComponent(new XMLSerializer().serializeToString(copy));
      await image.decode();
      pen.drawImage(image, 0, 2 * y, 2 * boxes[i].width, 2 * boxes[i].height);
      y += boxes[i].height;
    }
    tag('a', {href: canvas.toDataURL(), download: `elmo-${this.panel}.png`}).click();
  }

  // A slider from 0 to `end`, and a button that moves it by itself; where readers want no motion, it is
  // at its end at once.
  player(name, value, [end, by, pause], show) {
    const set = v => {
      value = input.value = v;
      show(v);
    };
    const play = () => {
      if (this.stop()) return;
      if (matchMedia('(prefers-reduced-motion: reduce)').matches) { set(end); return; }
      if (value >= end) set(0);
      this.playing = setInterval(() => {
        set(Math.min(end, value + by));
        if (value >= end) this.stop();
      }, pause);
    };
    const slider = range(name, [0, end, by], value, v => { this.stop(); set(v); });
    const input = slider.querySelector('input');
    show(value);
    return tag('p', {class: 'elmo-control'},
      press('▶', play, {'aria-label': `Play or pause: ${name}`}), slider);
  }

  stop() {
    const was = this.playing;
    clearInterval(was);
    this.playing = null;
    return Boolean(was);
  }

  // ---- the panels ---------------------------------------------------------------------------

  // All words, the place of the chosen one, and the cosine of words i and j in a layer.
  pairs({cosines}, {sentences, chosen: [s, t]}) {
    const words = sentences.flatMap((tokens, i) => tokens.map((word, j) => ({s: i, t: j, word})));
    const me = words.findIndex(o => o.s === s && o.t === t);
    const at = (l, i, j) => i === j ? 1 : cosines[l][Math.max(i, j) * (Math.max(i, j) - 1) / 2
      + Math.min(i, j)] / 100;
    return {words, me, at, pairs: this.compared(words, me, at)};
  }

  // The same word elsewhere; in a sentence without it, the word whose letters are most alike.
  compared(words, me, at) {
    return [0, 1, 2].flatMap(s => {
      const all = [...words.keys()].filter(i => words[i].s === s && i !== me);
      const equal = all.filter(i => same(words[i].word, words[me].word));
      if (equal.length || s === words[me].s) return equal;
      return all.sort((i, j) => at(0, me, j) - at(0, me, i)).slice(0, 1);
    });
  }

  // Each line of bars keeps its place, so that the bars move.
  bars(answer, asked) {
    const {words, me, at, pairs} = this.pairs(answer, asked);
    const head = pairs.length ? [`“${cut(words[me].word, 20)}” and`, ...LAYERS]
      : ['Write a second sentence to compare with.'];
    this.heads.replaceChildren(...head.map(text => tag('span', {text})));
    this.rows.forEach(({bars}, s) => {
      const own = pairs.filter(i => words[i].s === s);
      while (bars.children.length > own.length) bars.lastChild.remove();
      while (bars.children.length < own.length) {
        bars.append(tag('p', {class: 'elmo-line'}, tag('span', {class: 'elmo-name'}),
          ...LAYERS.map(() => tag('span', {class: 'elmo-bar'}, tag('b')))));
      }
      own.forEach((i, n) => [...bars.children[n].children].forEach((o, l) => {
        if (!l) { say(o, cut(words[i].word, 20)); return; }
        const value = at(l - 1, i, me);
        o.style.setProperty('--share', clamp(value, 0, 1));
        o.title = `cosine in ${LAYERS[l - 1]}`;
        say(o.firstChild, value.toFixed(2));
      }));
    });
    return [];
  }

  map(answer, asked) {
    const {words, me, at, pairs} = this.pairs(answer, asked);
    const {image, colour} = drawMap({words, me, pairs, width: this.width,
      choose: (i, j) => this.all.choose(i, j, this)});
    const control = this.player('layer', this.layer, [2, .02, 30], layer => {
      const low = Math.min(1, Math.floor(layer)), share = layer - low;
      this.layer = layer;
      colour((i, j) => at(low, i, j) * (1 - share) + at(low + 1, i, j) * share);
    });
    return [control, tag('div', {class: 'elmo-scroll', tabindex: 0, role: 'group', 'aria-label': 'Map'}, image)];
  }

  senses(answer) {
    const {dots, near, n} = answer, word = cut(answer.word, LONGEST), line = tag('p', {class: 'elmo-dot',
      text: 'Your sentences are the numbered dots. Point at a dot to read its sentence.'});
    const read = o => line.replaceChildren(...this.marked(o));
    const among = `${n.toLocaleString('en')} ${dots.length ? `occurrences of “${word}”` : 'words'}`;
    const list = tag('ol', {class: 'elmo-neighbours'}, ...near.map(o =>
      tag('li', {}, tag('span', {class: 'number', text: o.cosine.toFixed(2)}), ' ', ...this.marked(o))));
    const {stored} = this.all, moved = !same(answer.word, this.all.at());
    const other = moved ? [tag('p', {text: `No occurrences of “${cut(this.all.at(), LONGEST)}” are `
      + `stored; here are those of “${word}”.`})] : [];
    const image = dots.length && drawSenses(answer, {width: this.width, were: this.were, read});
    const seen = dots.length ? [...other, image, line]
      : [tag('p', {text: `No occurrences of “${word}” are stored. Dots are stored for: `
        + `${stored.words.join(', ')}.`})];
    return [...seen, tag('p', {class: 'elmo-title',
      text: `Nearest among ${among} in novels and WikiText-2`}), list];
  }

  // ---- the view of the home page: one field, and dots that keep their word -------------------

  // Where the word is whose dots are shown: in the sentence, or, until it is written there, in another.
  held() {
    const {tokens, chosen: [s, t], stored} = this.all;
    const all = tokens.flatMap((words, i) => words.map((word, j) => ({i, j, word: word.toLowerCase()})))
      .filter(o => stored.words.includes(o.word)).sort((a, b) => (b.i === s) - (a.i === s));
    const found = all.find(o => o.word === this.word) || all.find(o => o.i === s && o.j === t) || all[0];
    this.word = found?.word;
    return found ? [found.i, found.j] : [s, t];
  }

  // The sentences stand beside the reader's dots, long ones in part; on a phone below them.
  glide(answer, {sentences}) {
    const {yours, dots} = answer, [mine] = this.all.chosen, wide = this.width > 600;
    const texts = yours.map(({s, t}) => {
      const words = sentences[s], from = words.length < 10 ? 0 : Math.max(0, t - 4);
      return words.slice(from, Math.max(9, t + 5)).join(' ').replace(/ (?=[.,;:!?]$)/, '');
    });
    const line = tag('p', {class: 'elmo-dot'}), read = o => line.replaceChildren(...this.marked(o));
    say(line, yours.some(o => o.s === mine) ? 'Each small dot is a sentence: choose one to read it.'
      : `There is no “${this.word ?? ''}” in the sentence yet.`);
    if (!dots.length) return [line];
    const image = drawSenses(answer, {width: this.width, were: this.were, read, mine, names: wide ? texts : []});
    const list = tag('ul', {class: 'elmo-names'}, ...yours.map(({s}, i) => tag('li',
      {class: s === mine ? 'mine' : ''}, tag('b', {text: s + 1}), ' ', texts[i])));
    return wide ? [image, line] : [image, list, line];
  }

  // The other one of an example's first two sentences, letter by letter, or at once for readers who
  // want no motion.
  async retype() {
    const {turns: [a, b], rows: [{input}]} = this, now = input.value, text = now === b ? a : b;
    const mine = this.typing = {}, still = matchMedia('(prefers-reduced-motion: reduce)').matches;
    if (!await this.ask(this.question())) return;
    let same = 0;
    while (same < text.length && now[same] === text[same]) same++;
    const back = [...now.slice(same)].map((_, n) => now.slice(0, -1 - n));
    const on = [...text.slice(same)].map((_, n) => text.slice(0, same + 1 + n));
    for (const seen of still ? [text] : [...back, ...on]) {
      if (this.typing !== mine) return;
      input.value = seen;
      this.all.type(this.all.chosen[0], seen, this);
      do await new Promise(done => setTimeout(done, PAUSE / 2)); while (this.busy);     // each is seen
    }
  }

  // A sentence with its word marked and the sense that people gave to it.
  marked({text, t, sense}) {
    const words = text.split(' ');
    return [words.slice(0, t).join(' ') + ' ', tag('mark', {text: words[t]}),
      ' ' + words.slice(t + 1).join(' '), ...sense ? [tag('small', {text: ` (${sense})`})] : []];
  }

  readers(answer, {sentences, chosen: [s, t]}) {
    const words = sentences[s].map(o => cut(o, LONGEST)), join = some => some.join(' ');
    return [tag('p', {class: 'elmo-gap'}, tag('span', {class: 'forward', text: join(words.slice(0, t))}),
      tag('b', {text: ' ___ '}), tag('span', {class: 'backward', text: join(words.slice(t + 1))})),
    drawReaders(answer, {t, width: this.width, choose: j => this.all.choose(s, j, this)}),
    tag('p', {class: 'elmo-note', text: 'A nat is the unit of surprise, −ln p: 0 for a word that was '
      + 'certain, 0.7 for one chance in two, 4.6 for one in a hundred. A word with ? is not in the vocabulary.'})];
  }

  influence({changes}, {sentences, chosen: [s, t]}) {
    return [drawInfluence(changes, {words: sentences[s], t, width: this.width,
      choose: j => this.all.choose(s, j, this)}),
    tag('p', {class: 'elmo-note', text: 'Each other word is left out in turn. The bar is 1 − cosine of the '
      + `two vectors of “${cut(sentences[s][t], LONGEST)}”, with that word and without it. `
      + 'The vector is the mean of the three layers.'})];
  }

  write({best}, {sentences, chosen: [s, t], written = []}) {
    const hot = range('temperature', [.2, 2, .1], this.temperature, v => {
      this.temperature = v;
      say(number, v.toFixed(1));
      this.refresh();
    });
    const number = tag('span', {class: 'number', text: this.temperature.toFixed(1)});
    const begun = sentences[s].slice(0, t + 1).map(o => cut(o, LONGEST)).join(' ');
    return [tag('p', {class: 'elmo-gap'}, begun + ' ', tag('mark', {text: written.join(' ')}), ' …'),
      tag('p', {class: 'elmo-control'}, press('Write a word', () => this.writes(1)),
        press('Write ten', () => this.writes(10)), press('Start over', () => {
          this.written = [];
          this.refresh();
        }), hot, number),
      drawNext(best, {width: this.width}),
      tag('p', {class: 'elmo-note', text: 'The chances of the next word, by the forward model. Each is raised '
        + 'to the power 1/temperature: below 1 the likely words become likelier, above 1 the others do.'})];
  }

  // Words drawn by chance, each after those before it, until the reader does something else.
  async writes(n) {
    const mine = this.written = [...this.written];
    for (let i = 0; i < n && mine.length < MOST; i++) {
      const found = await this.ask({...this.question(), chance: Math.random()});
      if (!found || this.written !== mine) return;
      mine.push(found.word);
      await this.refresh();
    }
  }

  drawing(answer, {sentences, chosen: [s, t]}) {
    const to = panel => {
      const found = this.all.view(panel)?.place;
      return found && '#' + (found.closest('section')?.id || (found.id ||= `view-${panel}`));
    };
    return [drawElmo({words: sentences[s], t, width: this.width, to,
      choose: j => this.all.choose(s, j, this)})];
  }

  letters(answer) {
    const changed = answer.changed.map(x => Math.round(100 * x));
    return [drawLetters(answer, {likes: this.all.stored.likes, width: this.width}),
      tag('p', {class: 'elmo-note', text: 'In green the place where a filter fits best, and how well. '
        + 'Left, the three pieces of all words that it likes best. The highway is a gate for each number: '
        + `it replaces ${changed.join(' and ')} % of this word's numbers and carries the rest as they are.`})];
  }

  directions({states}, {sentences, chosen: [s, t]}) {
    const words = sentences[s], {image, show} = drawDirections(states, {words, t, width: this.width});
    return [this.player('words read', words.length, [words.length, 1, 400], show), image];
  }

  mix(answer) {
    const mixed = tag('div');
    const mix = () => {
      const total = this.weights.reduce((a, b) => a + b) || 1, share = this.weights.map(w => w / total);
      const form = a => share.reduce((sum, x, i) => sum + x * share.reduce((r, y, j) => r + y * a[i][j], 0), 0);
      const said = answer.others.map(o => `with sentence ${o.s + 1}: `
        + (form(o.cross) / Math.sqrt(form(answer.own) * form(o.own) || 1)).toFixed(2)).join(', ');
      mixed.replaceChildren(drawMix(answer.layers, share, this.gamma, this.width), tag('p', {text:
        `s = ${share.map(x => x.toFixed(2)).join(', ')}${said && `. Cosine of the mix ${said}`}.`}));
    };
    const sliders = this.weights.map((w, l) =>
      range(`s${l}`, [0, 1, .01], w, v => { this.weights[l] = v; mix(); }));
    sliders.push(range('γ', [0, 2, .01], this.gamma, v => { this.gamma = v; mix(); }));
    mix();
    return [tag('p', {class: 'elmo-control'}, ...sliders), mixed, tag('p', {class: 'elmo-note', text:
      's holds the weights of the layers, which sum to 1; γ is one factor for the whole vector.'})];
  }

  // ---- what is kept -------------------------------------------------------------------------

  async copy() {
    this.all.kept(this);
    try {
      await navigator.clipboard.writeText(location.href);
      say(this.said, 'The link is copied.');
    } catch { say(this.said, 'The link is in the address bar.'); }
  }
}

export async function start(places) {
  return new Explainer([...places], await read(here('stored.json')));
}
