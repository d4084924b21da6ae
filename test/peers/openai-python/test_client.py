# SPDX-License-Identifier: Apache-2.0
"""The official OpenAI client for Python against a gateway.

Environment: GATEWAY_URL, MODEL.
"""

import asyncio
import os
import unittest

import openai

MODEL = os.environ["MODEL"]
OPTIONS = {
    "base_url": os.environ["GATEWAY_URL"] + "/v1",
    "api_key": "unused",
    "max_retries": 0,
    "timeout": 20,
}


def messages(about):
    """A conversation whose prefix no other test shares."""
    return [
        {"role": "system", "content": f"{about}: this is what you answer questions about. " * 12},
        {"role": "user", "content": "Tell me more."},
    ]


# An answer does not end early, however the model would like to.
FULL = {"extra_body": {"ignore_eos": True}}
ENDLESS = {"max_tokens": 20_000, **FULL}


def chat(about, **options):
    defaults = {"model": MODEL, "messages": messages(about), "max_tokens": 8, "temperature": 0, **FULL}
    return defaults | options


def cached(usage):
    return (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = openai.OpenAI(**OPTIONS)
        cls.addClassCleanup(cls.client.close)

    def test_models_are_listed_and_retrieved(self):
        self.assertEqual([entry.id for entry in self.client.models.list()], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).id, MODEL)

    def test_a_chat_is_answered_and_counted(self):
        answer = self.client.chat.completions.create(**chat("python tides"))
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assertTrue(answer._request_id)

    def test_a_repeated_prefix_goes_to_its_holder_and_is_reused(self):
        create = self.client.chat.completions.with_raw_response.create
        first, second = create(**chat("python harbours")), create(**chat("python harbours"))
        replica = "x-inference-cache-replica"
        self.assertTrue(first.headers[replica])
        self.assertEqual(first.headers[replica], second.headers[replica])
        self.assertEqual(cached(first.parse().usage), 0)
        usage = second.parse().usage
        self.assertGreater(cached(usage), usage.prompt_tokens - 32)

    def test_turns_of_a_conversation_stay_with_their_holder(self):
        history, held = messages("python voyages"), 0
        for turn in range(4):
            answer = self.client.chat.completions.create(
                model=MODEL, messages=history, max_tokens=8, temperature=0
            )
            self.assertGreaterEqual(cached(answer.usage), held)
            held = answer.usage.prompt_tokens // 16 * 16
            history += [
                {"role": "assistant", "content": answer.choices[0].message.content},
                {"role": "user", "content": f"And then, number {turn}?"},
            ]

    def test_a_streamed_chat_equals_the_whole_one(self):
        whole = self.client.chat.completions.create(**chat("python currents"))
        with self.client.chat.completions.create(**chat("python currents"), stream=True) as stream:
            chunks = list(stream)
        self.assertTrue(all(chunk.usage is None for chunk in chunks))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "length")

    def test_a_stream_tells_its_usage_when_asked(self):
        stream = self.client.chat.completions.create(
            **chat("python anchors"), stream=True, stream_options={"include_usage": True}
        )
        usages = [chunk.usage for chunk in stream if chunk.usage]
        self.assertEqual([usage.completion_tokens for usage in usages], [8])

    def test_completions_take_text_and_token_ids(self):
        prompt = "The lighthouse keeper of python wrote a letter. " * 8
        text = self.client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)
        ids = self.client.completions.create(
            model=MODEL, prompt=list(prompt.encode()), max_tokens=4, temperature=0
        )
        self.assertEqual(text.usage.prompt_tokens, len(prompt))
        self.assertEqual(ids.choices[0].text, text.choices[0].text)
        self.assertGreater(cached(ids.usage), 0)

    def test_a_streamed_completion_equals_the_whole_one(self):
        options = {"model": MODEL, "prompt": "Count the python boats: ", "max_tokens": 12, "temperature": 0}
        whole = self.client.completions.create(**options)
        stream = self.client.completions.create(**options, stream=True)
        self.assertEqual("".join(chunk.choices[0].text for chunk in stream), whole.choices[0].text)

    def test_an_unknown_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(**chat("x", model="no-such-model"))
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("no-such-model")

    def test_a_field_that_steers_engines_is_a_bad_request(self):
        steering = {"kv_transfer_params": {"do_remote_decode": True}}
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(**chat("x", extra_body=steering))
        self.assertEqual(caught.exception.code, "forbidden_field")

    def test_a_request_the_engine_refuses_is_a_bad_request(self):
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(model=MODEL, messages="not a list", max_tokens=1)

    def test_a_left_stream_does_not_hold_the_next_request(self):
        with self.client.chat.completions.create(
            **chat("python storms", **ENDLESS), stream=True
        ) as stream:
            next(iter(stream))
        answer = self.client.chat.completions.create(**chat("python calm"))
        self.assertEqual(answer.usage.completion_tokens, 8)


class AsyncClientTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = openai.AsyncOpenAI(**OPTIONS)
        self.addAsyncCleanup(self.client.close)

    async def test_a_cancelled_request_does_not_hold_the_next_one(self):
        create = self.client.chat.completions.create
        pending = asyncio.create_task(create(**chat("python fog", **ENDLESS)))
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(pending, 0.2)
        answer = await create(**chat("python clearing"))
        self.assertEqual(answer.usage.completion_tokens, 8)

    async def test_many_streams_at_once_are_all_whole(self):
        async def tokens(about):
            stream = await self.client.chat.completions.create(
                **chat(about), stream=True, stream_options={"include_usage": True}
            )
            return [chunk.usage.completion_tokens async for chunk in stream if chunk.usage]

        counts = await asyncio.gather(*(tokens(f"python topic {n}") for n in range(24)))
        self.assertEqual(counts, [[8]] * 24)


if __name__ == "__main__":
    unittest.main()
