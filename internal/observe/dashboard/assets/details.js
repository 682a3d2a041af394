// The details of an instance, in a row below its own.

function toggleDetails(line) {
  const open = !line.more;
  line.open.setAttribute('aria-expanded', String(open));
  view.open[open ? 'add' : 'delete'](line.name);
  writeView();
  if (!open) {
    line.more.remove();
    line.more = null;
    return;
  }
  line.list = el('dl', { class: 'facts' });
  line.more = el('tr', { role: 'row', class: 'more-row' }, el('td', { role: 'cell' }, line.list));
  writeDetails(line);
  line.tr.after(line.more);
}

function details(row, load) {
  const list = [];
  const say = (name, value, wide) => { if (value !== undefined && value !== null && value !== '') list.push([name, value, wide]); };
  say('Reason', row.reason, true);
  say('Warning', row.warning, true);
  say('Models', row.models.join(', '), true);
  say('Connector', row.connector);
  say('Pairs with', row.group ? 'version group ' + row.group : '');
  say('vLLM', row.version);
  say('Weight', String(row.weight));
  say('Registered', `${row.static ? 'without a lease' : 'under its lease'} since ${moment(row.since)}${row.at_least ? ' or longer' : ''}`);
  say('Engine started', row.started_at ? moment(row.started_at) : '');
  say('Source', row.source);
  say('Revision', String(row.revision));
  say('Incarnation', row.id);
  if (load.held) say('Prompts held', count(load.held) + ' tokens');
  if (load.others) say('In flight', `${count(load.n)} from this proxy, ${count(load.others)} from others`);
  if (load.engine) {
    const e = load.engine;
    say('Engine', `${count(e.running)} running, ${count(e.waiting)} waiting, KV cache ${percent(e.usage)}${e.capacity ? ' of ' + count(e.capacity) + ' tokens' : ''}${e.old ? ' (stale)' : ''}`, true);
  }
  return list;
}

function writeDetails(line) {
  const row = state.rows.get(line.name), load = loadOf(line.name);
  const list = details(row, load), ranks = load.ranks || [];
  const text = JSON.stringify([list, ranks]);
  if (line.written === text && line.list.childElementCount) return;
  line.written = text;
  const nodes = list.flatMap(([name, value, wide]) => [el('dt', { class: wide ? 'wide' : null }, name), el('dd', { class: wide ? 'wide' : null }, value)]);
  if (ranks.length) {
    nodes.push(el('dt', { class: 'wide' }, 'Ranks'), el('dd', { class: 'wide' },
      el('ul', { class: 'ranks' }, ...ranks.map((n, i) => el('li', null, el('span', null, `${i}: `), count(n))))));
  }
  line.list.replaceChildren(...nodes);
}
