// The official JavaScript client against a fleet. The Go test beside this
// directory starts the fleet and says in the environment where it is.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import OpenAI from 'openai';

const env = (name) => {
  assert.ok(process.env[name], `${name} is not set: start this through \`make test-clients\``);
  return process.env[name];
};
const url = env('PROXY_URL');
const model = env('MODEL');
const prefills = env('PREFILL_URLS').split(',');
const decodes = env('DECODE_URLS').split(',');
const expected = JSON.parse(env('EXPECTED'));
const { version } = JSON.parse(readFileSync(new URL('./node_modules/openai/package.json', import.meta.url)));
console.log(`openai ${version} on node ${process.versions.node}`);

// make builds a client, and notes what each of its requests was answered.
const make = (options = {}) => {
  const calls = [];
  const client = new OpenAI({
    baseURL: `${url}/v1`,
    apiKey: 'sk-of-a-client',
    fetch: async (to, init) => {
      const response = await fetch(to, init);
      calls.push({ status: response.status, body: init.body, headers: new Headers(init.headers), answer: response.headers });
      return response;
    },
    ...options,
  });
  return { client, calls };
};

const state = async (engine) => (await fetch(`${engine}/fake/state`)).json();
const total = async (engines, name) => (await Promise.all(engines.map(state))).reduce((n, s) => n + s.counters[name], 0);
const faults = async (engines, fault, run) => {
  for (const e of engines) {
    const r = await fetch(`${e}/fake/faults`, { method: 'POST', body: JSON.stringify(fault) });
    assert.equal(r.status, 204, await r.text());
  }
  try {
    await run();
  } finally {
    for (const e of engines) await fetch(`${e}/fake/faults`, { method: 'DELETE' });
  }
};
const eventually = async (what, condition) => {
  const deadline = Date.now() + 60_000;
  while (!(await condition())) {
    assert.ok(Date.now() < deadline, `never: ${what}`);
    await new Promise((wake) => setTimeout(wake, 10));
  }
};

const ask = (content, more = {}) => ({ model, messages: [{ role: 'user', content }], ...more });
const tools = [
  { type: 'function', function: { name: 'look', description: 'looks & <tells>', parameters: { type: 'object', properties: { text: { type: 'string' } } } } },
  { type: 'function', function: { name: 'leap' } },
];

test('chat: the stream says what the whole answer says', async () => {
  const { client, calls } = make();
  const { text, tokens, prompt } = expected.chat;
  const body = ask(expected.question, { max_tokens: 200 });
  const whole = await client.chat.completions.create(body);
  assert.equal(whole.choices[0].message.content, text);
  assert.equal(whole.usage.completion_tokens, tokens);
  assert.equal(whole.usage.prompt_tokens, prompt);

  let streamed = '';
  let chunk;
  for await (chunk of await client.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } })) {
    streamed += chunk.choices[0]?.delta.content ?? '';
  }
  assert.equal(streamed, text);
  assert.deepEqual(chunk.choices, []);
  assert.deepEqual(chunk.usage.completion_tokens, tokens);

  const helper = await client.chat.completions.stream(body).finalChatCompletion();
  assert.equal(helper.choices[0].message.content, text);
  assert.equal(calls.length, 3);
  for (const c of calls) assert.ok(c.answer.get('x-request-id'));
});

test('completions: text, batches and streams', async () => {
  const { client } = make();
  const { text, tokens } = expected.completion;
  const body = { model, prompt: expected.question, max_tokens: 200 };
  const whole = await client.completions.create(body);
  assert.equal(whole.choices[0].text, text);
  let streamed = '';
  let usage;
  for await (const chunk of await client.completions.create({ ...body, stream: true, stream_options: { include_usage: true } })) {
    streamed += chunk.choices[0]?.text ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.equal(streamed, text);
  assert.equal(usage.completion_tokens, tokens);
  const batch = await client.completions.create({ ...body, prompt: [expected.question, 'another'] });
  assert.equal(batch.choices.length, 2);
  assert.equal(batch.choices[0].text, text);
});

test('every prompt of these was computed by a prefill engine', async () => {
  const { client } = make();
  const before = await total(decodes, 'local_prefills');
  const made = await total(prefills, 'transfers_made');
  await client.chat.completions.create(ask('one of two legs', { max_tokens: 3 }));
  assert.equal(await total(decodes, 'local_prefills'), before);
  assert.equal(await total(prefills, 'transfers_made'), made + 1);
});

for (const [name, tool_choice, forced] of [
  ['auto', 'auto', false],
  ['none', 'none', false],
  ['required', 'required', true],
  ['named', { type: 'function', function: { name: 'leap' } }, true],
]) {
  test(`tools: ${name}`, async () => {
    const { client } = make();
    const body = ask('what is the weather?', { tools, tool_choice, max_tokens: 400 });
    const whole = (await client.chat.completions.create(body)).choices[0];
    const stream = (await client.chat.completions.stream(body).finalChatCompletion()).choices[0];
    if (!forced) {
      assert.equal(whole.message.tool_calls, undefined);
      assert.ok(whole.message.content);
      assert.equal(stream.message.content, whole.message.content);
      return;
    }
    assert.equal(whole.finish_reason, name === 'named' ? 'stop' : 'tool_calls'); // as vLLM has it
    assert.equal(stream.finish_reason, whole.finish_reason);
    const [call] = whole.message.tool_calls;
    assert.ok(['look', 'leap'].includes(call.function.name));
    if (name === 'named') assert.equal(call.function.name, 'leap');
    assert.equal(typeof JSON.parse(call.function.arguments).text, 'string');
    assert.deepEqual(stream.message.tool_calls[0].function.arguments, call.function.arguments);
    assert.equal(stream.message.tool_calls[0].function.name, call.function.name);
  });
}

test('errors arrive as the classes of the client', async () => {
  const { client, calls } = make();
  const fails = async (promise, kind, fields) => {
    const before = calls.length;
    await assert.rejects(promise(), (e) => {
      assert.ok(e instanceof kind, `${e.constructor.name}: ${e.message}`);
      assert.ok(e instanceof OpenAI.APIError);
      for (const [name, value] of Object.entries(fields)) assert.equal(e[name], value, `${name} of ${e.message}`);
      return true;
    });
    assert.equal(calls.length, before + 1, 'a request that cannot succeed was tried again');
  };
  await fails(() => client.chat.completions.create(ask('hi', { model: 'nobody/has-it' })), OpenAI.NotFoundError,
    { status: 404, code: 404, type: 'NotFoundError', param: 'model' });
  await fails(() => client.chat.completions.create(ask('hi', { model: 'nobody/has-it', stream: true })), OpenAI.NotFoundError, { status: 404 });
  await fails(() => client.chat.completions.create(ask('hi', { max_tokens: 0 })), OpenAI.BadRequestError,
    { status: 400, code: 400, type: 'BadRequestError', param: 'max_tokens' });
  await fails(() => client.chat.completions.create(ask('hi', { temperature: -1 })), OpenAI.BadRequestError,
    { status: 400, type: 'BadRequestError', param: 'temperature' });
  await fails(() => client.models.retrieve('nobody/has-it'), OpenAI.NotFoundError, { status: 404, param: 'model' });
  // As before vLLM itself: `{"detail":"Not Found"}` is no error object, so the client has a status alone.
  await fails(() => client.get('/fine_tuning/jobs'), OpenAI.NotFoundError, { status: 404, type: undefined });
});

test('a key that is checked', async () => {
  const keyed = make({ baseURL: `${env('KEYED_URL')}/v1`, apiKey: 'sk-right' });
  assert.equal((await keyed.client.chat.completions.create(ask('hi', { max_tokens: 3 }))).object, 'chat.completion');
  const wrong = make({ baseURL: `${env('KEYED_URL')}/v1`, apiKey: 'sk-wrong' });
  await assert.rejects(wrong.client.models.list(), (e) => e instanceof OpenAI.AuthenticationError && e.status === 401 && e.type === 'AuthenticationError');
  assert.equal(wrong.calls.length, 1);
});

test('a stream that is lost is an error, not a short answer', async () => {
  for (const fault of [{ kind: 'reset' }, { kind: 'error_event' }]) {
    await faults(decodes, { ...fault, at: 'after_tokens', tokens: 5 }, async () => {
      const { client, calls } = make();
      let chunks = 0;
      await assert.rejects(async () => {
        for await (const _ of await client.chat.completions.create(ask('hi', { max_tokens: 50, stream: true }))) chunks += 1;
      }, (e) => e instanceof OpenAI.APIError || e instanceof TypeError);
      assert.ok(chunks >= 5, `${chunks} chunks`);
      assert.equal(calls.length, 1);
    });
  }
});

test('an abort stops the engine', async () => {
  const { client, calls } = make();
  const before = await total(decodes, 'aborted');
  await faults(decodes, { kind: 'slow', itl: '5ms' }, async () => {
    const long = ask('talk for long', { max_tokens: 4000, ignore_eos: true, stream: true });
    const controller = new AbortController();
    let chunks = 0;
    for await (const _ of await client.chat.completions.create(long, { signal: controller.signal })) {
      if (++chunks === 5) controller.abort();
    }
    for await (const _ of await client.chat.completions.create(long)) break; // leaving the loop gives up as well
    await eventually('two are aborted', async () => (await total(decodes, 'aborted')) === before + 2);
    const waiting = new AbortController();
    const whole = client.chat.completions.create({ ...long, stream: false }, { signal: waiting.signal });
    await eventually('a third one runs', async () => (await total(decodes, 'running')) === 1);
    waiting.abort();
    await assert.rejects(whole, OpenAI.APIUserAbortError);
    await eventually('three are aborted', async () => (await total(decodes, 'aborted')) === before + 3);
  });
  await eventually('nothing runs', async () => (await total([...prefills, ...decodes], 'running')) === 0);
  assert.equal(calls.length, 2, 'the third was never answered, and none was tried again');
});

test('retries', async (t) => {
  const quick = ask(expected.question, { max_tokens: 200 });
  await t.test('what one engine fails at is not noticed', async () => {
    await faults([prefills[0], decodes[0]], { kind: 'status', status: 503 }, async () => {
      const { client, calls } = make();
      for (let i = 0; i < 4; i += 1) {
        assert.equal((await client.chat.completions.create(quick)).choices[0].message.content, expected.chat.text);
      }
      assert.equal(calls.length, 4);
    });
  });
  for (const [status, header] of [[429, { 'Retry-After-Ms': '20' }], [503, { 'Retry-After': '1' }]]) {
    await t.test(`${status} of all engines`, async () => {
      // Each of them is asked twice within one request.
      await faults(decodes, { kind: 'status', status, times: 2, header }, async () => {
        const { client, calls } = make({ maxRetries: 3 });
        assert.equal((await client.chat.completions.create(quick)).choices[0].message.content, expected.chat.text);
        assert.deepEqual(calls.map((c) => c.status), [status, 200]);
        for (const [name, value] of Object.entries(header)) assert.equal(calls[0].answer.get(name), value);
        assert.equal(calls[1].headers.get('x-stainless-retry-count'), '1');
      });
    });
  }
  await t.test('none allowed', async () => {
    await faults(decodes, { kind: 'status', status: 429 }, async () => {
      const { client, calls } = make({ maxRetries: 0 });
      await assert.rejects(client.chat.completions.create(quick), OpenAI.RateLimitError);
      assert.equal(calls.length, 1);
    });
  });
  await t.test('nobody listens', async () => {
    const { client } = make({ baseURL: 'http://127.0.0.1:1/v1', maxRetries: 1 });
    await assert.rejects(client.chat.completions.create(quick), OpenAI.APIConnectionError);
  });
});

test('models', async () => {
  const { client } = make();
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.deepEqual(ids, [model]);
  const one = await client.models.retrieve(model);
  assert.equal(one.id, model);
  assert.equal(one.root, model);
  assert.equal(one.max_model_len, 4096);
});
