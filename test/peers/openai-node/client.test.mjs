// SPDX-License-Identifier: Apache-2.0
//
// The official OpenAI client for JavaScript against a gateway.
// Environment: GATEWAY_URL, MODEL, NODE_MODULE (folder with node_modules).

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { test } from 'node:test';

const require = createRequire(join(process.env.NODE_MODULE, 'package.json'));
const OpenAI = require('openai');

const model = process.env.MODEL;
const client = new OpenAI({
  baseURL: `${process.env.GATEWAY_URL}/v1`,
  apiKey: 'unused',
  maxRetries: 0,
  timeout: 20_000,
});

/** A conversation of its own for every test: `about` makes its prefix unique. */
function messages(about) {
  return [
    { role: 'system', content: `${about}: this is what you answer questions about. `.repeat(12) },
    { role: 'user', content: 'Tell me more.' },
  ];
}

/** An answer that ends only when the client leaves. */
const endless = { max_tokens: 20_000, ignore_eos: true };

const chat = (about, options = {}) => ({ model, messages: messages(about), max_tokens: 8, ignore_eos: true, temperature: 0, ...options });

test('models are listed and retrieved', async () => {
  const ids = [];
  for await (const entry of client.models.list()) ids.push(entry.id);
  assert.deepEqual(ids, [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
});

test('a chat is answered and counted', async () => {
  const answer = await client.chat.completions.create(chat('node tides'));
  assert.equal(answer.object, 'chat.completion');
  assert.equal(answer.choices[0].message.role, 'assistant');
  assert.equal(answer.choices[0].finish_reason, 'length');
  assert.equal(answer.usage.completion_tokens, 8);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 8);
  assert.ok(answer._request_id, 'no request id');
});

test('a repeated prefix goes to its holder and is reused', async () => {
  const first = await client.chat.completions.create(chat('node harbours')).withResponse();
  assert.equal(first.data.usage.prompt_tokens_details?.cached_tokens ?? 0, 0);
  const second = await client.chat.completions.create(chat('node harbours')).withResponse();
  const { prompt_tokens, prompt_tokens_details } = second.data.usage;
  assert.equal(
    second.response.headers.get('x-inference-cache-replica'),
    first.response.headers.get('x-inference-cache-replica'),
  );
  assert.ok(prompt_tokens_details.cached_tokens > prompt_tokens - 32, `${prompt_tokens_details.cached_tokens} of ${prompt_tokens} tokens reused`);
});

test('a streamed chat equals the whole one', async () => {
  const whole = await client.chat.completions.create(chat('node currents'));
  const stream = await client.chat.completions.create(chat('node currents', { stream: true }));
  let text = '';
  let chunks = 0;
  let finish;
  for await (const chunk of stream) {
    assert.equal(chunk.object, 'chat.completion.chunk');
    assert.ok(!chunk.usage, 'usage was not asked for');
    assert.equal(chunk.choices.length, 1);
    text += chunk.choices[0].delta.content ?? '';
    finish = chunk.choices[0].finish_reason ?? finish;
    chunks++;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(finish, 'length');
  assert.ok(chunks > 2, `${chunks} chunks`);
});

test('a stream tells its usage when asked', async () => {
  const options = { stream: true, stream_options: { include_usage: true } };
  const usages = [];
  for await (const chunk of await client.chat.completions.create(chat('node anchors', options))) {
    if (chunk.usage) usages.push(chunk.usage);
  }
  assert.equal(usages.length, 1);
  assert.equal(usages[0].completion_tokens, 8);
});

test('completions take text and token ids', async () => {
  const prompt = 'The lighthouse keeper of node wrote a letter. '.repeat(8);
  const options = { model, max_tokens: 4, temperature: 0 };
  const text = await client.completions.create({ ...options, prompt });
  const ids = await client.completions.create({ ...options, prompt: [...Buffer.from(prompt)] });
  assert.equal(text.object, 'text_completion');
  assert.equal(text.usage.prompt_tokens, prompt.length);
  assert.equal(ids.choices[0].text, text.choices[0].text);
  assert.ok(ids.usage.prompt_tokens_details.cached_tokens > 0, 'the same tokens were not reused');
});

test('a streamed completion equals the whole one', async () => {
  const options = { model, prompt: 'Count the node boats: ', max_tokens: 12, temperature: 0 };
  const whole = await client.completions.create(options);
  let text = '';
  for await (const chunk of await client.completions.create({ ...options, stream: true })) text += chunk.choices[0].text;
  assert.equal(text, whole.choices[0].text);
});

test('an unknown model is a NotFoundError', async () => {
  await assert.rejects(client.chat.completions.create(chat('x', { model: 'no-such-model' })), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError, `${error.constructor.name}: ${error.message}`);
    assert.equal(error.status, 404);
    assert.equal(error.code, 'model_not_found');
      return true;
  });
  await assert.rejects(client.models.retrieve('no-such-model'), OpenAI.NotFoundError);
});

test('a field that steers engines is a BadRequestError', async () => {
  const body = chat('x', { kv_transfer_params: { do_remote_decode: true } });
  await assert.rejects(client.chat.completions.create(body), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError, `${error.constructor.name}: ${error.message}`);
    assert.equal(error.code, 'forbidden_field');
    return true;
  });
});

test('a request the engine refuses is a BadRequestError', async () => {
  await assert.rejects(
    client.chat.completions.create({ model, messages: 'not a list', max_tokens: 1 }),
    OpenAI.BadRequestError,
  );
});

test('a path that is not served is a NotFoundError', async () => {
  await assert.rejects(client.get('/assistants'), OpenAI.NotFoundError);
});

test('a stream can be aborted and the next request is served', async () => {
  const stream = await client.chat.completions.create(chat('node storms', { ...endless, stream: true }));
  let chunks = 0;
  for await (const chunk of stream) {
    assert.equal(chunk.object, 'chat.completion.chunk');
    if (++chunks === 3) break;
  }
  assert.ok(stream.controller.signal.aborted, 'leaving the loop did not abort the request');
  const answer = await client.chat.completions.create(chat('node calm'));
  assert.equal(answer.usage.completion_tokens, 8);
});

test('an aborted request rejects as a user abort', async () => {
  const controller = new AbortController();
  const pending = client.chat.completions.create(chat('node fog', endless), { signal: controller.signal });
  setTimeout(() => controller.abort(), 200);
  await assert.rejects(pending, OpenAI.APIUserAbortError);
});

test('many conversations at once are all answered', async () => {
  const topics = Array.from({ length: 24 }, (_, i) => `node topic ${i}`);
  const answers = await Promise.all(topics.map((topic) => client.chat.completions.create(chat(topic))));
  assert.ok(answers.every((answer) => answer.usage.completion_tokens === 8));
});
