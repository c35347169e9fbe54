// The queue in its order. A row opens: why it waits, which node is nearest, what would help.

import { about, waiting } from './store.js';
import { age, aged, ask, grid, h, items, keep, line, oneMove, setAge, setText } from './dom.js';
import { gangAnswer } from './gangs.js';

const MOST = 500; // rows in the document
const NODES = 200; // verdicts in the document

const words = {
  active: 'is tried next',
  preparing: 'being bound: volumes',
  waitingForLock: 'being bound: waits for the node lock',
  locking: 'being bound: takes the lock',
  binding: 'being bound',
  held: 'holds room for its gang',
  backOff: 'backs off',
  parked: 'parked',
};

/** `2 nodes have no free GPU`, as `baton explain` words it. */
function onNodes(count, reason) {
  if (!count) return reason;
  if (!reason.startsWith('have ')) return `${count} node${count > 1 ? 's' : ''}: ${reason}`;
  return count === 1 ? `1 node has ${reason.slice(5)}` : `${count} nodes ${reason}`;
}

/** Reasons with their nodes, the nearest node, what wakes and what helps; of a pod that waits or of one that does not exist. */
function verdict(answer) {
  const refusal = ({ reason, count, examples = [] }) =>
    h('li', {}, onNodes(count, reason),
      examples.length ? h('span', { class: 'dim' }, ` ${examples.join(', ')}${count > examples.length ? ', …' : ''}`) : '');
  const verdicts = (answer.nodes ?? []).slice(0, NODES).map((node) =>
    h('li', {}, h('a', { href: `#/node/${node.node}` }, node.node), ` ${node.fits ? 'fits' : `${node.rule ?? ''} ${node.reason ?? ''}`}`));
  return [
    (answer.held ?? []).filter((row) => row.problem && !row.outOfService).map((row) => h('p', { class: 'wrong' }, `${row.device}: ${row.problem}`)),
    answer.rules?.length ? h('ul', { class: 'reasons' }, answer.rules.map(refusal)) : '',
    answer.nearest ? h('p', { class: 'nearest' }, h('b', {}, 'Nearest: '), answer.nearest) : '',
    items('What would wake it', answer.wakes),
    items('What helps', [...oneMove(answer).map((move) => `Move one pod: ${move}`), ...answer.advice ?? []]),
    verdicts.length ? h('details', {}, h('summary', {}, `Every node (${answer.nodes.length})`), h('ul', {}, verdicts)) : '',
  ].flat();
}

function jobAnswer(answer) {
  const [turn, of] = answer.turn ?? [];
  const seat = ({ pod, pods, state, node, refused }) =>
    [`${pod}${pods > 1 ? ` and ${pods - 1} more like it` : ''}: ${state}`, node ? ` on ${node}` : '', refused ? `; cannot be placed anywhere: ${refused}` : ''].join('');
  return [
    h('p', { class: 'first' }, answer.message ?? ''),
    turn ? h('p', {}, `Turn ${turn} of ${of} waiting jobs`) : '',
    items('Places', (answer.seats ?? []).map(seat)),
  ].flat();
}

/** What one row has to say, asked when it opens. */
async function explain(kind, name) {
  if (kind === 'TYJob') return jobAnswer(await ask(`api/job/${name}`));
  const [first] = name.split(',');
  if (kind === 'group') return gangAnswer(await ask(`api/gang/${first}`));
  const answer = await ask(`api/pod/${name}`);
  return [h('p', { class: 'first' }, answer.message), ...verdict(answer)];
}

export default function make(root) {
  const filter = h('input', { type: 'search', placeholder: 'namespace/name or why', autocomplete: 'off' });
  filter.value = about.hello?.namespace ? `${about.hello.namespace}/` : '';
  const shown = h('output', {});
  const tools = h('form', { class: 'tools' }, h('label', {}, 'Filter ', filter), shown);
  tools.onsubmit = (event) => event.preventDefault();
  const { element, body } = grid('Queue', ['#', 'Name', 'Kind', 'Wants', 'Waits', 'Tries', 'Next try', 'State', 'Why']);
  const open = new Map(); // answers of open rows
  const empty = h('p', { class: 'empty' }, 'Nothing waits.');
  const [note, keepAged] = aged(element);
  root.append(h('h1', {}, 'Queue'), tools, note, element, empty, whatIf());

  function row(key) {
    const element = line(['place', 'name brief', 'kind', 'wants', 'since brief', 'tries', 'next', 'state brief', 'why']);
    const cells = element.cells_;
    const button = h('button', { class: 'open', type: 'button', 'aria-expanded': 'false' });
    cells[1].append(button);
    cells[4].append(age());
    cells[6].append(age());
    cells[6].firstChild.ahead = true;
    button.onclick = () => toggle(key, button);
    return element;
  }

  async function toggle(key, button) {
    const opens = !open.has(key);
    button.setAttribute('aria-expanded', opens);
    if (opens) {
      const answer = h('div', { class: 'answer' }, 'The scheduler is asked …');
      open.set(key, answer);
      draw();
      const space = key.indexOf(' ');
      const said = await explain(key.slice(0, space), key.slice(space + 1)).catch((error) => [h('p', { class: 'wrong' }, error.message)]);
      answer.replaceChildren(...said.filter((part) => part !== ''));
    } else {
      open.delete(key);
      draw();
    }
  }

  const because = (item) => item.message || (item.rules ?? []).join(', ');

  function fill(element, item) {
    const [place, name, kind, wants, since, tries, next, state, why] = element.cells_;
    setText(place, item.place === undefined ? '' : item.place + 1);
    setText(name.firstChild, item.name);
    setText(kind, item.kind);
    setText(wants, item.wants ?? '');
    setAge(since.firstChild, item.queuedAt);
    setText(tries, item.attempts ?? '');
    setAge(next.firstChild, item.nextTryAt);
    setText(state, words[item.state] ?? item.state ?? '');
    setText(why, because(item));
  }

  function draw() {
    keepAged();
    const word = filter.value.trim().toLowerCase();
    const all = waiting();
    const fits = (item) => !word || `${item.name} ${because(item)}`.toLowerCase().includes(word);
    const keys = Object.keys(all).filter((key) => fits(all[key]));
    keys.sort((a, b) => (all[a].place ?? Infinity) - (all[b].place ?? Infinity) || a.localeCompare(b));
    for (const key of open.keys()) if (!all[key]) open.delete(key);
    const rows = keys.slice(0, MOST).flatMap((key) => (open.has(key) ? [key, `? ${key}`] : [key]));
    keep(
      body,
      rows,
      (key) => (key.startsWith('? ') ? h('tr', { class: 'opened' }, h('td', { colspan: '9' }, open.get(key.slice(2)))) : row(key)),
      (element, key) => key.startsWith('? ') || fill(element, all[key]),
    );
    setText(shown, keys.length > MOST ? `the first ${MOST} of ${keys.length}` : `${keys.length} of ${Object.keys(all).length}`);
    element.hidden = keys.length === 0;
    empty.hidden = keys.length > 0;
  }

  filter.oninput = draw;
  return { update: (changed) => (!changed || changed.queue || changed.jobs || changed.problems) && draw() };
}

/** What would be decided for a pod that does not exist. */
function whatIf() {
  const text = h('textarea', { rows: '8', spellcheck: 'false', placeholder: 'apiVersion: v1\nkind: Pod\n…' });
  const answer = h('div', { class: 'answer', role: 'status' });
  const submit = h('button', { type: 'submit' }, 'What would happen?');
  const form = h('form', {}, h('label', {}, 'Manifest of pods or of what makes them, YAML or JSON; nothing is created ', text), submit, answer);
  form.onsubmit = async (event) => {
    event.preventDefault();
    setText(answer, 'The scheduler is asked …');
    try {
      const said = await ask('api/what-if', { method: 'POST', body: text.value });
      answer.replaceChildren(...outcome(said));
    } catch (error) {
      answer.replaceChildren(h('p', { class: 'wrong' }, error.message));
    }
  };
  return h('section', { class: 'what-if' }, h('h2', {}, 'What if'), form);
}

function outcome(said) {
  if (said.objects) {
    return said.objects.map((of) => h('p', { class: 'first' }, `${of.object} ${of.headline}.`));
  }
  const best = (said.best ?? []).map((node) =>
    h('li', {}, h('a', { href: `#/node/${node.node}` }, node.node), ` ${node.score} = `,
      node.ratings.map((part) => `${part.rule} ${part.score}×${part.weight}`).join(' + ')));
  // Counted reasons are listed below.
  const listed = said.rules?.length && said.rules.every((rule) => rule.count > 0);
  const headline = listed ? said.headline.split(`: ${said.message}`)[0] : said.headline;
  return [
    h('p', { class: 'first' }, `Pod ${said.pod} ${headline}.`),
    said.devices?.length ? h('p', {}, `Devices: ${said.devices.join(', ')}`) : '',
    said.preemption && !said.headline.includes(said.preemption) ? h('p', {}, said.preemption) : '',
    ...items('Notes', said.notes),
    best.length ? h('details', {}, h('summary', {}, 'Scores'), h('ul', {}, best)) : '',
    ...verdict(said),
  ].filter((part) => part !== '');
}
