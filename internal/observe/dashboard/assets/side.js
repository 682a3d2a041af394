// The panels next to the fleet: request figures, findings, events, queues, proxies, etcd.

const tiles = [
  { id: 'rate', title: 'Requests per second', colour: 'accent', lines: ['served', 'refused'], unit: '' },
  { id: 'flight', title: 'In flight', colour: 'accent', lines: ['in_flight'], unit: '' },
  { id: 'first', title: 'First token', colour: 'prefill', lines: ['first50', 'first95'], unit: 'ms' },
  { id: 'between', title: 'Between tokens', colour: 'decode', lines: ['between50', 'between95'], unit: 'ms' },
  { id: 'tokens', title: 'Tokens per second', colour: 'accent', lines: ['output', 'input'], unit: '' },
  { id: 'failed', title: 'Failed', colour: 'bad', lines: ['failed'], unit: '' },
];

function buildTiles() {
  for (const tile of tiles) {
    tile.value = el('span');
    tile.small = el('small');
    tile.more = el('span', { class: 'more' });
    tile.chart = chart(44, tile.lines.length > 1);
    tile.box = el('div', { class: 'tile c-' + tile.colour }, el('h3', null, tile.title),
      el('p', { class: 'big' }, tile.value, tile.small, tile.more), tile.chart.node);
    byId('tiles').append(tile.box);
  }
}

function renderTiles(change) {
  const lines = state.history.total;
  const last = (name) => latest(lines[name]);
  for (const tile of tiles) {
    if (change.point) tile.chart.draw(lines[tile.lines[0]] || [], lines[tile.lines[1]] || []);
    const is = last(tile.lines[0]);
    if (tile.unit) {
      const [n, unit] = millis(is);
      setText(tile.value, n);
      setText(tile.small, unit ? ' ' + unit : '');
      setText(tile.more, is === null ? 'no streams' : '95 %: ' + latency(last(tile.lines[1])));
    } else {
      setText(tile.value, is === null ? '–' : number.format(is));
    }
  }
  const [rate, flight, , , tokens, failed] = tiles, all = state.parts.fleet;
  setText(flight.value, count(all ? last('in_flight') || 0 : state.parts.requests || 0));
  setText(flight.more, all ? 'legs to engines' : '');
  setText(tokens.value, last('output') === null ? '–' : count(last('output')));
  setText(tokens.small, ' out');
  setText(tokens.more, last('input') === null ? '' : `${count(last('input'))} in`);
  const alone = last('alone');
  setText(rate.more, alone ? `${number.format(alone)} decode-only` : '');
  const lost = Math.round((lines.failed || []).reduce((sum, v) => sum + (v || 0), 0) * state.history.step);
  setText(failed.value, last('failed') === null ? '–' : count(lost));
  setText(failed.small, last('failed') ? ` ${number.format(last('failed'))} per second now` : '');
  setText(failed.more, 'in five minutes');
  setClass(failed.more, lost ? 'more bad' : 'more');
  setClass(failed.box, lost ? 'tile c-bad' : 'tile c-soft');
  setText(rate.small, last('refused') ? ` +${number.format(last('refused'))} refused` : '');
}

function renderFindings() {
  const doctor = (state.parts.doctor || []).map((f) => `${f.severity}: ${f.text}. ${f.cure}`);
  const list = [...(state.parts.findings || []), ...doctor];
  byId('findings').hidden = list.length === 0;
  byId('findings-list').replaceChildren(...list.map((text) => el('li', null, text)));
}

// renderScope shows which proxies the figures include.
function renderScope() {
  const list = state.parts.proxies?.list || [], out = list.filter((p) => p.missing), box = byId('scope');
  box.hidden = list.length < 2;
  const scope = state.parts.fleet ? `Figures of ${list.length - out.length} of ${list.length} proxies.` : 'Figures of this proxy.';
  setText(box, scope + (out.length ? ` Not included: ${out.map((p) => `${p.address || p.id} (${p.missing})`).join(', ')}.` : ''));
  setClass(box, out.length ? 'bad' : '');
}

function renderFailures() {
  const list = state.parts.failures || [];
  byId('failures-card').hidden = list.length === 0;
  byId('failures').replaceChildren(...list.slice(0, 30).map((f) => el('li', null, el('span', { class: 'tag ' + f.role }, f.role), ' ', el('span', { class: 'mono' }, f.instance), ` ${f.class}: ${count(f.count)}`)));
}

const counts = (of) => Object.entries(of || {}).filter(([, n]) => n).sort().map(([name, n]) => `${name.replace('\n', ' ') || '(no name)'} ${count(n)}`).join(', ') || 'none';

function renderQueues() {
  const list = state.parts.queues || [], nodes = [], say = (name, value) => nodes.push(el('dt', null, name), el('dd', null, value));
  byId('queues-card').hidden = list.length === 0;
  for (const q of list) {
    const waiting = counts(q.waiting);
    say('Model', q.model + (q.mode === 'on' ? '' : ` (${q.mode})`));
    say('Waiting', waiting === 'none' ? waiting : `${waiting}; the oldest for ${latency(q.oldest * 1000)}`);
    if (waiting !== 'none') say('By key', counts(q.keys));
    say('Predicted wait', latency(q.predicted_wait * 1000));
    say('Saturation', Object.entries(q.saturation).sort().map(([role, is]) => `${role} ${percent(is)}`).join(', ') || 'unknown');
  }
  say('Refused', counts(state.parts.totals?.refused) + ' since the proxies started');
  byId('queues').replaceChildren(...nodes);
}

function renderKeys() {
  const { requests = {}, tokens = {}, limited = {} } = state.parts.totals || {}, names = [...new Set([...Object.keys(requests), ...Object.keys(limited)])].sort();
  byId('keys-card').hidden = names.length === 0;
  byId('keys').replaceChildren(...names.slice(0, 50).flatMap((name) => [el('dt', null, name), el('dd', null,
    `${plural(requests[name] || 0, 'request')}, tokens ${count(tokens[name + '\ninput'] || 0)} in, ${count(tokens[name + '\noutput'] || 0)} out` + (limited[name] ? `, ${count(limited[name])} refused` : ''))]));
}

function renderRoutes() {
  const list = state.parts.routes || [], cell = (label, text, ...more) => el('td', { role: 'cell', 'data-label': label }, text, ...more);
  byId('routes-card').hidden = list.length === 0;
  byId('routes').replaceChildren(...list.flatMap((r) => (r.targets.length ? r.targets : [{}]).map((t, i) => el('tr', { role: 'row' },
    cell('Model', i ? '' : r.name, i ? null : el('div', { class: r.problem ? 'sub bad' : 'sub' }, r.problem ? 'not used: ' + r.problem : r.reason || '')),
    cell('Target', t.target || '–'), cell('Weight', String(t.weight ?? '–')), cell('Requests', count(t.requests || 0)),
    cell('Usable', t.target ? `${t.prefill} prefill, ${t.decode} decode` : '–'), cell('Ends', r.ends ? moment(Date.parse(r.ends)) : 'when removed')))));
}

function feedEntry(c) {
  const at = el('time', { datetime: new Date(c.at).toISOString(), title: moment(c.at) }, clock(c.at));
  const what = el('span', { class: 'what' }, el('span', { class: 'mark ' + c.kind, 'aria-hidden': 'true' }));
  if (c.role) what.append(el('span', { class: 'tag ' + c.role }, c.role), ' ');
  what.append(el('span', { class: c.role ? 'mono' : null }, c.who || ''), ' ', c.text);
  return el('li', null, at, what);
}

function renderFeed(change) {
  const list = byId('feed');
  if (change.whole) list.replaceChildren(...state.feed.slice().reverse().map(feedEntry));
  else {
    list.prepend(...change.feed.slice().reverse().map(feedEntry));
    while (list.childElementCount > 100) list.lastElementChild.remove();
  }
  if (!list.childElementCount) list.append(el('li', { class: 'muted' }, 'Nothing has changed yet.'));
  else if (state.feed.length) list.querySelector('.muted')?.remove();
}

function renderProxies() {
  const part = state.parts.proxies;
  if (!part) {
    byId('proxies').replaceChildren(el('p', { class: 'muted' }, 'Loading …'));
    return;
  }
  const list = part.list || [];
  const newest = Math.max(0, ...list.map((p) => p.applied));
  const nodes = list.map((p) => {
    const lag = newest - p.applied;
    return el('div', { class: 'proxy' },
      el('span', { class: 'mono' }, p.address || p.id), el('span', { class: 'badge ' + (lag ? 'warn' : 'good') }, lag ? `${count(lag)} behind` : 'up to date'),
      el('span', { class: 'sub' }, [p.own ? 'this proxy' : '', p.missing ? 'figures not included' : '', p.version, p.started ? 'up ' + age(now() - p.started) : '', 'revision ' + p.applied].filter(Boolean).join(' · ')));
  });
  if (part.error) nodes.push(el('p', { class: 'error' }, `As of ${clock(part.at)}: ${part.error}`));
  if (!nodes.length) nodes.push(el('p', { class: 'muted' }, 'No proxy has reported yet.'));
  byId('proxies').replaceChildren(...nodes);
}

function renderEtcd() {
  const e = state.parts.etcd, list = [];
  if (!e) return;
  const say = (name, value) => { if (value) list.push(el('dt', null, name), el('dd', null, value)); };
  say('State', e.live ? 'connected' : e.state);
  say('Revision', String(state.parts.revision || 0));
  say('Endpoints', (e.endpoints || []).join(', ') + (e.embedded ? ' (embedded)' : ''));
  say('Orphans', e.orphans ? `${plural(e.orphans, 'instance')} in use without a lease` : '');
  say('Held', e.held ? `${plural(e.held, 'instance')} in use, although most of the role disappeared at once` : '');
  say('Kept', e.kept ? `${plural(e.kept, 'key')} missing in etcd: see pdctl restore` : '');
  byId('etcd').replaceChildren(...list);
  renderAlarm(e);
}

// Screen readers announce the alarm when its text changes, so it contains no running clock.
function renderAlarm(e) {
  const box = byId('alarm');
  let text = '', title = '', kind = 'bad';
  if (!e.live && e.state !== 'cold' && e.state !== 'listing') {
    title = 'etcd does not respond';
    text = (e.last_contact ? `since ${clock(Date.parse(e.last_contact))}. ` : '. ') +
      'The instances below continue to serve. Changes of the fleet take effect when etcd responds again.';
    if (e.ended) text += ' The embedded etcd of this proxy has exited: ' + e.ended;
  } else if (e.state === 'cold') { // the first read; later reads, every few minutes, are silent
    title = 'Reading the membership';
    kind = 'warn';
    text = e.last_error ? 'Last error: ' + e.last_error : '';
  }
  if (box.dataset.text === title + text) return;
  box.dataset.text = title + text;
  box.replaceChildren(...(title ? [el('p', { class: 'banner ' + kind }, el('b', null, title), el('span', null, text))] : []));
}

function renderLink() {
  const quiet = Date.now() - state.lastEvent, link = byId('link');
  const lost = state.broken || state.lastEvent > 0 && quiet > 6000;
  link.dataset.state = lost ? 'lost' : state.lastEvent ? 'live' : 'wait';
  setText(byId('link-text'), lost ? (state.lastEvent ? `no updates since ${clock(state.lastEvent)}` : 'no connection') : state.lastEvent ? 'live' : 'connecting');
}

function renderSelf() {
  const s = state.self;
  setText(byId('where'), s.address);
  document.title = `pdmesh ${s.address}`;
  setText(byId('foot'), `Proxy ${s.id} · ${s.version} · also as JSON at /status and as metrics at /metrics`);
}
