// The tables of instances, one for each role.

const roles = [['prefill', 'Prefill'], ['decode', 'Decode']];
const columns = [
  ['who', 'Instance', (n) => state.rows.get(n).address],
  ['state', 'State', (n) => condition(state.rows.get(n)).text],
  ['load', 'Load', (n) => legs(n)],
  ['first', 'First token', (n) => latest(lineOf(n, 0)) ?? -1],
  ['between', 'Between tokens', (n) => latest(lineOf(n, 1)) ?? -1],
  ['cache', 'Cache', (n) => loadOf(n).hit ?? (loadOf(n).engine ? loadOf(n).engine.usage : -1)],
  ['age', 'Age', (n) => -state.rows.get(n).since],
  ['act', '', null],
];

const noLoad = { n: 0, hit: null };
const loadOf = (name) => state.loads.get(name) || noLoad;
const legs = (name) => loadOf(name).n + (loadOf(name).others || 0); // of all proxies
const keyOf = (row) => row.role + '/' + row.address;
const noLines = [[], []];
const lineOf = (name, i) => (state.history.of.get(keyOf(state.rows.get(name))) || noLines)[i];

// condition returns the status of an instance (instance.Status in Go) as a label, with the kind of its badge.
function condition(row) {
  const texts = { draining: row.state === 'down' ? 'draining, down' : 'draining' };
  const kinds = { ready: 'good', rejected: 'bad', ejected: 'bad', down: 'bad', removed: '', elsewhere: '' };
  const label = (text, kind) => ({ text, kind });
  if (row.status === 'down' && row.cause === 'slow') return label('slow', 'warn');
  if (row.status === 'ready' && row.weight === 0) return label('weight 0', 'warn');
  return label(texts[row.status] || row.status || 'unknown', kinds[row.status] ?? 'warn');
}

// The reason why an instance is not ready, if its row has none. Intents have one.
const reasons = {
  pending: 'it has not responded yet', starting: 'its engine is starting', draining: 'its agent is draining it', down: 'its engine does not respond to its agent', orphan: 'its lease was lost, but it responds',
  unverified: 'no proxy has received a valid response', elsewhere: 'it belongs to other proxies',
};

const fleet = { tables: new Map(), lines: new Map(), sort: ['who', 1], order: '' };

// Only lines that are near the visible part of the page are drawn.
const seen = new IntersectionObserver((entries) => {
  for (const e of entries) {
    const line = fleet.lines.get(e.target.dataset.name);
    if (!line) continue;
    line.near = e.isIntersecting;
    if (line.near) drawLine(line);
  }
}, { rootMargin: '200px' });

function buildTables() {
  for (const [role, title] of roles) {
    const note = el('p'), lost = el('ul', { class: 'lost' });
    const head = el('tr', { role: 'row' });
    for (const [id, text, by] of columns) {
      head.append(el('th', { role: 'columnheader', scope: 'col', 'data-by': id }, by
        ? el('button', { type: 'button', onclick: () => sortBy(id) }, text)
        : el('span', { class: 'hidden' }, 'Actions')));
    }
    const body = el('tbody', { role: 'rowgroup' });
    const empty = el('p', { class: 'empty' });
    const table = el('table', { role: 'table', 'aria-labelledby': 'h-' + role }, el('thead', { role: 'rowgroup' }, head), body);
    byId('tables').append(el('div', { class: 'table c-' + role }, el('div', { class: 'caption' }, el('h3', { id: 'h-' + role }, title), note), lost, table, empty));
    fleet.tables.set(role, { note, lost, head, body, empty, table });
  }
  markSort();
}

function sortBy(id) {
  fleet.sort = [id, fleet.sort[0] === id ? -fleet.sort[1] : ['load', 'first', 'between', 'cache'].includes(id) ? -1 : 1];
  markSort();
  arrange();
  writeView();
}

function markSort() {
  for (const { head } of fleet.tables.values()) {
    for (const th of head.children) {
      if (th.dataset.by !== fleet.sort[0]) th.removeAttribute('aria-sort');
      else th.setAttribute('aria-sort', fleet.sort[1] > 0 ? 'ascending' : 'descending');
    }
  }
}

// wanted reports whether an entry matches the filters.
function wanted(row) {
  const only = byId('only').value, text = byId('search').value.trim().toLowerCase();
  if (only === 'serving' && !row.usable || only === 'out' && row.usable) return false;
  if (!text) return true;
  return [row.address, row.connector, row.version, row.group, row.state, row.view, row.intent, row.id, row.source, condition(row).text, ...row.models]
    .some((s) => s && s.toLowerCase().includes(text));
}

const compareText = new Intl.Collator('en', { numeric: true }).compare;

// arrange sorts the rows that match the filters.
function arrange() {
  const [id, direction] = fleet.sort, by = columns.find((c) => c[0] === id)[2];
  const names = [...state.rows.keys()].filter((n) => wanted(state.rows.get(n)));
  const value = new Map(names.map((n) => [n, by(n)]));
  names.sort((a, b) => {
    const x = value.get(a), y = value.get(b);
    return direction * (typeof x === 'string' ? compareText(x, y) : x - y) || compareText(a, b);
  });
  for (const [role, table] of fleet.tables) {
    const nodes = [];
    for (const n of names) {
      if (state.rows.get(n).role !== role) continue;
      const line = fleet.lines.get(n) || newLine(n);
      nodes.push(line.tr);
      if (line.more) nodes.push(line.more);
    }
    const same = nodes.length === table.body.children.length && nodes.every((node, i) => table.body.children[i] === node);
    if (!same) {
      const focused = document.activeElement;
      table.body.replaceChildren(...nodes);
      if (focused && table.body.contains(focused)) focused.focus();
    }
    const all = [...state.rows.values()].filter((r) => r.role === role);
    table.table.hidden = nodes.length === 0;
    table.empty.hidden = nodes.length > 0;
    setText(table.empty, all.length === 0 ? `No ${role} instance is registered. Start an agent next to one, or add it here.` : 'No instance matches the filter.');
  }
  const filtered = byId('only').value || byId('search').value.trim();
  setText(byId('shown'), filtered ? `${plural(names.length, 'instance')} shown of ${state.rows.size}` : '');
}

function newLine(name) {
  const cell = (id, label, ...children) => el('td', { role: 'cell', class: id, 'data-label': label }, ...children);
  const spark = () => {
    const c = chart(28), value = el('b');
    return { draw: c.draw, value, box: el('div', { class: 'spark' }, c.node, value) };
  };
  const line = {
    name, near: false, more: null, open: el('button', { type: 'button', class: 'name', 'aria-expanded': 'false', onclick: () => toggleDetails(line) }),
    about: el('div', { class: 'sub' }), badge: el('span', { class: 'badge' }), why: el('div', { class: 'sub' }), left: el('div', { class: 'sub' }), most: 0,
    n: el('b'), flying: el('span'), waits: el('span', { title: 'Prompt tokens that wait for prefill' }), meter: el('i'), first: spark(), between: spark(), hits: el('div'), usage: el('div', { class: 'sub' }), age: el('span'),
    manage: el('button', { type: 'button', class: 'quiet', onclick: () => manage(name) }, 'Manage'),
  };
  line.usage.style.padding = '0';
  line.flying.append(line.n, ' in flight');
  line.tr = el('tr', { role: 'row' },
    cell('who', null, line.open, line.about),
    cell('state', null, line.badge, line.why, line.left),
    cell('load', 'Load', el('p', null, line.flying, line.waits), el('div', { class: 'meter' }, line.meter)),
    cell('first', 'First token', line.first.box),
    cell('between', 'Between tokens', line.between.box),
    cell('cache', 'Cache', line.hits, line.usage),
    cell('age', 'Age', line.age),
    cell('act', null, line.manage));
  line.tr.dataset.name = name;
  fleet.lines.set(name, line);
  writeRow(line);
  writeLoad(line);
  seen.observe(line.tr);
  if (view.open.has(name)) toggleDetails(line);
  return line;
}

function dropLine(name) {
  const line = fleet.lines.get(name);
  if (!line) return;
  seen.unobserve(line.tr);
  line.tr.remove();
  if (line.more) line.more.remove();
  fleet.lines.delete(name);
}

function writeRow(line) {
  const row = state.rows.get(line.name), is = condition(row);
  setText(line.open, row.address);
  setText(line.about, [row.models[0] + (row.models.length > 1 ? ` +${row.models.length - 1}` : ''), row.connector, row.version && 'vLLM ' + row.version]
    .filter((s) => s && s !== 'undefined').join(' · '));
  line.about.title = line.about.textContent;
  setText(line.badge, is.text);
  setClass(line.badge, 'badge ' + is.kind);
  const why = [row.weight !== 100 && `weight ${row.weight}`, row.reason || row.warning || (row.usable ? '' : reasons[row.status])].filter(Boolean).join(' · ');
  setText(line.why, why);
  line.why.title = why;
  setClass(line.tr, row.usable ? '' : 'out');
  line.manage.setAttribute('aria-label', `Manage ${row.role} ${row.address}`);
  writeAge(line);
  if (line.more) writeDetails(line);
}

function writeAge(line) {
  const row = state.rows.get(line.name);
  setText(line.age, (row.at_least ? '> ' : '') + age(now() - row.since));
  line.age.title = (row.static ? 'Static, no lease; known' : 'Under this lease') + ' since ' + moment(row.since) + (row.at_least ? ' or longer' : '');
}

function writeLoad(line) {
  const load = loadOf(line.name), row = state.rows.get(line.name);
  const all = legs(line.name);
  setText(line.n, count(all));
  setText(line.waits, load.waiting ? count(load.waiting) + ' tok' : '');
  line.meter.style.transform = `scaleX(${Math.min(1, all / (fleet.most?.[row.role] || 1)).toFixed(3)})`;
  setText(line.hits, load.hit === null ? '' : percent(load.hit) + ' hits');
  setText(line.usage, load.engine ? 'KV ' + percent(load.engine.usage) + (load.engine.old ? ' (stale)' : '') : load.hit === null ? '–' : '');
  line.most = row.intent === 'drain' ? Math.max(line.most, all) : 0;
  setText(line.left, row.intent !== 'drain' ? '' : all ? `${count(all)} of ${count(line.most)} still in flight` : 'none in flight');
  if (line.more) writeDetails(line);
}

function drawLine(line) {
  const row = state.rows.get(line.name);
  if (!row) return;
  ['first', 'between'].forEach((id, i) => {
    const values = lineOf(line.name, i), is = latest(values), spark = line[id];
    setClass(spark.box, is === null ? 'spark none' : 'spark');
    setText(spark.value, latency(is));
    spark.draw(values);
  });
}

// renderFleet updates the tables with the changes of one event.
function renderFleet(change) {
  if (change.whole) for (const name of [...fleet.lines.keys()]) if (!state.rows.has(name)) dropLine(name);
  for (const name of change.rows) if (!state.rows.has(name)) dropLine(name);
  const most = { prefill: 1, decode: 1 };
  for (const [name, row] of state.rows) most[row.role] = Math.max(most[row.role], legs(name));
  const scale = fleet.most && most.prefill === fleet.most.prefill && most.decode === fleet.most.decode;
  fleet.most = most;
  for (const [name, line] of fleet.lines) {
    if (change.whole || change.rows.has(name)) writeRow(line);
    if (change.whole || !scale || change.loads.has(name)) writeLoad(line);
    if (change.point && line.near) drawLine(line);
  }
  const moves = fleet.sort[0] === 'who' || fleet.sort[0] === 'age' ? change.rows.size > 0 : true;
  if (change.members || moves) arrange();
  writeNotes();
}

// Losses that the user of this browser has acknowledged, by role/address@time.
const lostPlace = 'pdmesh-acknowledged', lostStorage = storage('localStorage');
const lostId = (l) => `${l.role}/${l.address}@${l.at}`;
const acknowledged = () => (lostStorage.getItem(lostPlace) || '').split(' ');
const lostOf = (role) => (state.parts.lost || []).filter((l) => l.role === role && !acknowledged().includes(lostId(l)));

function acknowledge(l) {
  lostStorage.setItem(lostPlace, [...acknowledged(), lostId(l)].slice(-200).join(' '));
  writeNotes();
}

function writeLost(list, lost) {
  const ids = lost.map(lostId).join(' ');
  if (list.dataset.ids !== ids) {
    list.dataset.ids = ids;
    list.replaceChildren(...lost.map((l) => el('li', null, el('span', { class: 'mono' }, l.address), el('span', { title: moment(l.at) }),
      el('button', { type: 'button', class: 'quiet', 'aria-label': `Acknowledge the loss of ${l.role} ${l.address}`, onclick: () => acknowledge(l) }, 'Acknowledge'))));
  }
  lost.forEach((l, i) => setText(list.children[i].children[1], ` lost ${age(now() - l.at)} ago, without a drain `));
}

function writeNotes() {
  for (const [role, table] of fleet.tables) {
    const lost = lostOf(role);
    writeLost(table.lost, lost);
    let serving = 0, all = 0, running = 0, waiting = 0;
    for (const [name, row] of state.rows) {
      if (row.role !== role) continue;
      all++;
      serving += row.usable ? 1 : 0;
      running += legs(name);
      waiting += loadOf(name).waiting || 0;
    }
    all += lost.length;
    setText(table.note, all === 0 ? 'none' : `${serving} of ${all} serving` + (lost.length ? `, ${lost.length === 1 ? 'one' : lost.length} lost ${age(now() - lost.at(-1).at)} ago` : '') +
      ` · ${count(running)} in flight` + (waiting ? ` · ${count(waiting)} tokens waiting` : ''));
    setClass(table.note, all > 0 && serving === 0 || lost.length ? 'bad' : '');
  }
}
