// Changes of the fleet, through the admin routes and with the admin key.

const keyPlace = 'pdmesh-admin-key', keyStorage = storage('sessionStorage');
const admin = { key: keyStorage.getItem(keyPlace) || '', then: null };

const can = (action) => Boolean(state.self && state.self.actions.includes(action));

let saidTimer = 0;
function say(text) {
  clearTimeout(saidTimer);
  setText(byId('said'), text);
  saidTimer = setTimeout(() => setText(byId('said'), ''), 8000);
}

function renderKey() {
  setText(byId('key-text'), admin.key ? 'Forget key' : 'Enter key');
}

function setKey(key, keep) {
  admin.key = key;
  if (key && keep) keyStorage.setItem(keyPlace, key);
  else keyStorage.removeItem(keyPlace);
  renderKey();
}

// withKey calls then, after it has asked for the admin key if necessary.
function withKey(then) {
  if (state.self && !state.self.admin) {
    say('This proxy accepts no changes over HTTP: set ADMIN_API_KEY when you start it, or use pdctl.');
    return;
  }
  if (admin.key) { then(); return; }
  admin.then = then;
  byId('key-input').value = '';
  byId('key-dialog').showModal();
}

// post calls an admin route. It returns the proxy's message, or throws an error.
async function post(action, body) {
  let response;
  try {
    response = await fetch('instances/' + action, {
      method: 'POST', credentials: 'omit', cache: 'no-store', redirect: 'error', referrerPolicy: 'no-referrer',
      headers: { 'Content-Type': 'application/json', 'X-Api-Key': admin.key }, body: JSON.stringify(body),
    });
  } catch {
    throw new Error('The proxy cannot be reached, or the key has characters that are invalid in a header.');
  }
  let answer = {};
  try { answer = await response.json(); } catch { /* a response without JSON still has a status */ }
  if (response.ok) return answer.message || 'Done.';
  if (response.status === 401 || response.status === 403) setKey('', false);
  if (response.status === 404 && !answer.message && !answer.error) throw new Error(`This proxy has no route for ${action}; try pdctl.`);
  throw new Error(answer.message || (typeof answer.detail === 'string' && answer.detail) || answer.error?.message || `The proxy answered ${response.status}.`);
}

let underway = null; // the action whose answer the open dialog waits for

// submit runs a dialog's action once, with its button disabled meanwhile. If the dialog is
// closed before the response arrives, the result is still shown, and no other dialog changes.
async function submit(dialog, button, error, action) {
  if (underway) return;
  const mine = underway = {};
  button.disabled = true;
  setText(error, '');
  let answer, failure;
  try { answer = await action(); } catch (e) { failure = e.message; }
  if (underway !== mine) {
    say(failure || answer);
    return;
  }
  leave(button);
  if (failure) {
    setText(error, admin.key ? failure : failure + ' Close this and enter the key again.');
    return;
  }
  say(answer);
  dialog.close();
}

// leave enables a dialog's button for another action.
function leave(button) {
  underway = null;
  button.disabled = false;
}

function openAdd() {
  withKey(() => {
    setText(byId('add-error'), '');
    byId('add-dialog').showModal();
    byId('add-address').focus();
  });
}

function readAdd() {
  const role = document.querySelector('input[name=role]:checked').value, address = byId('add-address').value.trim();
  if (!address) {
    setText(byId('add-error'), 'Enter a host and a port.');
    return;
  }
  submit(byId('add-dialog'), byId('add-ok'), byId('add-error'), async () => {
    const message = await post('add', { type: role, instance: address });
    byId('add-address').value = '';
    return message;
  });
}

// The actions with their texts. takes is true if the instance receives no new requests
// afterwards.
const acts = {
  undrain: { title: 'Undrain', note: 'It receives new requests again', takes: false, fits: (r) => r.intent === 'drain' },
  uncordon: { title: 'Uncordon', note: 'It receives new requests again', takes: false, fits: (r) => r.intent === 'cordon' },
  drain: { title: 'Drain', note: 'No new requests; stop it when those in flight have finished', takes: true, fits: (r) => r.intent !== 'drain' && r.intent !== 'removed' },
  cordon: { title: 'Cordon', note: 'No new requests until you uncordon it', takes: true, fits: (r) => !r.intent },
  role: { title: 'Change role', note: 'Limits its engine to one role without a restart; the other role drains', takes: true, fits: (r) => twin(r) && r.intent !== 'removed' },
  weight: { title: 'Set weight', note: 'Its share of the requests of its role', takes: false, fits: (r) => r.intent !== 'removed' },
  remove: { title: 'Remove', note: 'Deletes it from etcd; its agent cannot register it again', takes: true, fits: () => true },
};

// twin returns the row of an engine in its other role.
const twin = (row) => state.rows.get(`${row.role === 'decode' ? 'prefill' : 'decode'}/${row.address}`);

let managed = null; // { name, row } that the dialog is about

function manage(name) {
  withKey(() => {
    const row = state.rows.get(name);
    if (!row) return;
    managed = { name, row };
    const list = Object.entries(acts).filter(([id, act]) => can(id) && (row.view === 'pending' || row.view === 'rejected' ? id === 'remove' : act.fits(row)));
    setText(byId('act-h'), `${row.role} ${row.address}`);
    byId('act-list').replaceChildren(el('legend', { class: 'hidden' }, 'What to do'), ...list.map(([id, act], i) => {
      const input = el('input', { type: 'radio', name: 'act', value: id });
      input.checked = i === 0;
      return el('label', null, input, el('b', null, act.title), el('span', null, act.note));
    }));
    byId('act-weight').value = row.weight;
    byId('act-reason').value = byId('act-for').value = '';
    byId('act-role').value = row.status.endsWith('-only') || twin(row)?.status.endsWith('-only') ? 'both' : row.role;
    byId('act-sure').checked = false;
    setText(byId('act-error'), '');
    writeAct();
    byId('act-dialog').showModal();
  });
}

const chosen = () => document.querySelector('input[name=act]:checked')?.value;

// effect describes the effect of an action on the role; last is true if no instance remains.
function effect(act, row, weight) {
  const same = row.canonical && state.rows.get(`${row.role}/${row.canonical}`);
  if (same) { // remove deletes all keys of an instance
    const e = effect(act, same, weight);
    return { ...e, text: `Removes ${same.address}, too. ${e.text}` };
  }
  const to = byId('act-role').value;
  if (act === 'role' && to === 'both') return { text: 'Its engine serves both roles again, if it is healthy.' };
  if (act === 'role' && to === row.role) row = twin(row) || row; // the role that it leaves
  const all = [...state.rows.values()].filter((r) => r.role === row.role && r.view !== 'pending' && r.view !== 'elsewhere' && r.intent !== 'removed');
  const serving = all.filter((r) => r.usable), goes = acts[act].takes || act === 'weight' && weight === 0;
  const running = loadOf(keyOf(row)).n, others = loadOf(keyOf(row)).others || 0;
  if (!goes) {
    if (act === 'undrain' || act === 'uncordon') return { text: `It receives requests again: ${serving.length + 1} of ${all.length} ${row.role} instances will serve, if it is healthy.` };
    return { text: `${serving.length} of ${all.length} ${row.role} instances continue to serve.` };
  }
  const left = serving.filter((r) => r.address !== row.address).length, of = act === 'remove' ? all.length - 1 : all.length;
  const ends = running || others ? ` Requests in flight ${act === 'remove' ? 'continue, but are no longer counted' : 'run to completion'}: ${count(running)} from this proxy${others ? `, about ${count(others)} from others` : ''}.` : '';
  if (!row.usable) return { text: `It does not serve now, so nothing changes for requests: ${left} of ${of} ${row.role} instances serve.${ends}` };
  if (left > 0) return { text: `${left} of ${serving.length} ${row.role} instances remain.${ends}` };
  const then = row.role === 'decode' ? 'every request is refused with 503' : state.self.fallback ? 'decode instances compute every prompt' : 'every request is refused with 503';
  return { last: row.role, text: `No ${row.role} instance remains: ${then}.${ends}` };
}

function writeAct() {
  const id = chosen(), ok = byId('act-ok'), text = byId('act-effect');
  const row = managed.row = state.rows.get(managed.name) || managed.row;
  const is = condition(row);
  setText(byId('act-now'), `State: ${is.text}${row.reason ? ' (' + row.reason + ')' : ''}. In flight from this proxy: ${count(loadOf(managed.name).n)}.`);
  if (!id) {
    setText(text, 'This proxy has no admin route that changes it; use pdctl.');
    ok.hidden = true;
    return;
  }
  const e = effect(id, row, Number(byId('act-weight').value));
  setText(text, e.text);
  setClass(text, e.last ? 'effect bad' : 'effect');
  byId('act-weight-field').hidden = id !== 'weight';
  byId('act-role-field').hidden = id !== 'role';
  byId('act-for-field').hidden = id === 'remove' || id.startsWith('un') || id === 'role' && byId('act-role').value === 'both';
  byId('act-reason-field').hidden = id === 'remove';
  byId('act-sure-field').hidden = !e.last;
  setText(byId('act-sure-text'), `I know that no ${e.last} instance remains`);
  ok.hidden = false;
  ok.disabled = Boolean(underway) || Boolean(e.last) && !byId('act-sure').checked;
  setClass(ok, acts[id].takes ? 'main danger' : 'main');
  setText(ok, ({ role: 'Change role of', weight: 'Set weight of' }[id] || acts[id].title) + ' ' + row.address);
}

function readAct() {
  const id = chosen(), row = managed.row;
  if (!id || byId('act-ok').disabled) return;
  const body = { type: row.role, instance: row.address }, reason = byId('act-reason').value.trim();
  if (reason && !byId('act-reason-field').hidden) body.reason = reason;
  if (id === 'weight') {
    const weight = byId('act-weight').valueAsNumber;
    if (!Number.isInteger(weight) || weight < 0) {
      setText(byId('act-error'), 'A weight is a whole number, 0 or more.');
      return;
    }
    body.weight = weight;
  }
  if (id === 'role') Object.assign(body, { type: byId('act-role').value, force: byId('act-sure').checked && !byId('act-sure-field').hidden });
  const limit = byId('act-for').value.trim();
  if (limit && !byId('act-for-field').hidden) body.for = limit;
  submit(byId('act-dialog'), byId('act-ok'), byId('act-error'), () => post(id, body));
}

function buildDialogs() {
  const on = (id, type, f) => byId(id).addEventListener(type, f);
  const form = (id, read) => byId(id).querySelector('form').addEventListener('submit', (e) => { e.preventDefault(); read(); });
  for (const button of document.querySelectorAll('[data-close]')) button.addEventListener('click', () => button.closest('dialog').close());
  form('key-dialog', () => {
    const key = byId('key-input').value, then = admin.then;
    if (!key) { byId('key-input').focus(); return; }
    setKey(key, byId('key-keep').checked);
    byId('key-input').value = '';
    byId('key-dialog').close();
    if (then) then();
  });
  on('key-dialog', 'close', () => { admin.then = null; byId('key-input').value = ''; });
  form('add-dialog', readAdd);
  form('act-dialog', readAct);
  on('act-dialog', 'input', writeAct);
  on('add-dialog', 'close', () => leave(byId('add-ok')));
  on('act-dialog', 'close', () => { managed = null; leave(byId('act-ok')); });
  on('add', 'click', openAdd);
  on('key', 'click', () => { if (admin.key) { setKey('', false); say('The key was deleted from this page.'); } else withKey(() => say('This page uses the key for all changes.')); });
}
