// Gangs: how many members are bound, reserved, pending or not created, and what holds a gang back.

import { about, table } from './store.js';
import { age, aged, ask, grid, h, items, keep, line, oneMove, setAge, setText, withCommands } from './dom.js';

const MOST = 500;

/** A Go duration in seconds. */
function seconds(text = '') {
  const units = { h: 3600, m: 60, s: 1 };
  return [...text.matchAll(/([\d.]+)(h|m|s)/g)].reduce((sum, [, amount, unit]) => sum + amount * units[unit], 0);
}

/** What holds a gang back, and what to do. */
export function gangAnswer(answer) {
  const members = answer.members.map((member) => h('li', {}, `${member.pod}: ${member.state}${member.node ? ` on ${member.node}` : ''}`));
  return [
    h('p', { class: 'first' }, answer.message),
    answer.rootCause
      ? h('p', {}, h('b', {}, 'Blocks: '), `${answer.rootCause.pod}: ${answer.rootCause.summary}`)
      : '',
    answer.advice && answer.advice !== 'nothing' ? h('p', {}, h('b', {}, 'What helps: '), withCommands(answer.advice)) : '',
    oneMove(answer).map((move) => h('p', {}, h('b', {}, 'One move would help: '), move)),
    (answer.group ?? []).flatMap((gang) => (gang.warnings ?? []).map((warning) => h('p', { class: 'wrong' }, `${gang.gang}: ${warning}`))),
    items('What would wake it', answer.wakes),
    h('details', {}, h('summary', {}, `Members (${members.length})`), h('ul', {}, members)),
  ].flat().filter((part) => part !== '');
}

export default function make(root) {
  const columns = ['Name', 'Members', 'Minimum', 'Time-out', 'Next try', 'Mode', 'Starts with', 'Why'];
  const { element, body } = grid('Gangs', columns);
  const empty = h('p', { class: 'empty' }, 'No gang has members.');
  const open = new Map();
  const [note, keepAged] = aged(element);
  root.append(h('h1', {}, 'Gangs'), legend(), note, element, empty);

  function row(key) {
    const element = line(['name brief', 'members brief', 'minimum', 'next brief', 'next', 'mode', 'group', 'why']);
    const cells = element.cells_;
    const button = h('button', { class: 'open', type: 'button', 'aria-expanded': 'false' });
    cells[0].append(button);
    const bar = h('div', { class: 'bar', role: 'img' });
    cells[1].append(bar, h('span', {}));
    for (const cell of cells.slice(3, 5)) {
      cell.append(age());
      cell.firstChild.ahead = true;
    }
    button.onclick = () => toggle(key, button);
    return element;
  }

  async function toggle(key, button) {
    button.setAttribute('aria-expanded', !open.has(key));
    if (open.delete(key)) return draw();
    const answer = h('div', { class: 'answer' }, 'The scheduler is asked …');
    open.set(key, answer);
    draw();
    const path = key.startsWith('TYJob ') ? `api/job/${key.slice(6)}` : `api/gang/${key}`;
    const said = await ask(path).then(key.startsWith('TYJob ') ? (job) => [h('p', { class: 'first' }, job.message ?? '')] : gangAnswer)
      .catch((error) => [h('p', { class: 'wrong' }, error.message)]);
    answer.replaceChildren(...said);
  }

  function fill(element, gang) {
    const [name, members, minimum, timeout, next, mode, group, why] = element.cells_;
    const { bound, reserved, pending, absent, text } = gang;
    const counts = { bound, reserved, pending, absent };
    const parts = Object.entries(counts).filter(([, count]) => count > 0);
    setText(name.firstChild, gang.name);
    const [bar, words] = members.children;
    bar.setAttribute('aria-label', text);
    keep(bar, parts.map(([word]) => word), (word) => h('i', { class: `cell ${word}` }), (part, word) => {
      part.style.flexGrow = counts[word];
    });
    setText(words, text);
    setText(minimum, gang.min);
    setAge(timeout.firstChild, gang.until);
    setAge(next.firstChild, gang.next);
    setText(mode, gang.mode);
    setText(group, gang.group.join(', '));
    setText(why, gang.why ?? '');
  }

  function all() {
    const rows = {};
    const time = (text) => Date.parse(text) / 1000;
    for (const [key, gang] of Object.entries(table('gangs'))) {
      rows[key] = {
        name: key, min: gang.minRequiredNumber, bound: gang.counts.bound + gang.counts.running, reserved: gang.counts.reserved,
        pending: gang.counts.pending, absent: gang.notCreated, done: gang.counts.succeeded, text: gang.members, mode: gang.mode, group: (gang.gangGroup ?? []).filter((other) => other !== key),
        until: gang.holdingSince ? time(gang.holdingSince) + seconds(gang.waitTime) : undefined,
        next: gang.nextTry && time(gang.nextTry), why: gang.lastFailure,
      };
    }
    for (const [key, job] of Object.entries(table('jobs'))) {
      if (job.stage === 'Succeeded' || job.stage === 'Failed') continue;
      const [ready, total] = (job.ready ?? '0/0').split('/').map(Number);
      rows[`TYJob ${key}`] = {
        name: key, min: total, bound: ready, reserved: 0, pending: total - ready, absent: 0, done: 0, text: `${ready} of ${total} ready`, mode: 'TYJob', group: [], why: job.message ?? job.stage,
      };
    }
    return rows;
  }

  function draw() {
    keepAged();
    const gangs = all();
    const space = about.hello?.namespace ? `${about.hello.namespace}/` : '';
    const waits = (gang) => gang.bound + gang.done < gang.min;
    const keys = Object.keys(gangs).filter((key) => gangs[key].name.startsWith(space));
    keys.sort((a, b) => waits(gangs[b]) - waits(gangs[a]) || a.localeCompare(b));
    for (const key of open.keys()) if (!gangs[key]) open.delete(key);
    keep(
      body,
      keys.slice(0, MOST).flatMap((key) => (open.has(key) ? [key, `? ${key}`] : [key])),
      (key) => (key.startsWith('? ') ? h('tr', { class: 'opened' }, h('td', { colspan: '8' }, open.get(key.slice(2)))) : row(key)),
      (element, key) => key.startsWith('? ') || fill(element, gangs[key]),
    );
    element.hidden = keys.length === 0;
    empty.hidden = keys.length > 0;
  }

  return { update: (changed) => (!changed || changed.gangs || changed.jobs || changed.problems) && draw() };
}

function legend() {
  const words = { bound: 'bound: have a node', reserved: 'reserved: have room', pending: 'pending: wait for room', absent: 'not created' };
  return h('ul', { class: 'legend' }, Object.entries(words).map(([word, text]) => h('li', {}, h('i', { class: `cell ${word}` }), ` ${text}`)));
}
