// SPDX-License-Identifier: Apache-2.0
//
// Usage: node golden.mjs MODULES OUT
// Writes small tokenizer files of our own making into the folder OUT, and
// golden.json: what the reference library installed under MODULES makes of
// texts of our own making.
import { createRequire } from 'node:module';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const [modules, out] = process.argv.slice(2);
const { Tokenizer } = createRequire(modules + '/package.json')('tokenizers');
mkdirSync(out, { recursive: true });

// What pieces are learned from.
const corpus = `The gateway sends each request to the replica that holds its prefix. The index knows
which replica holds which block, and the engine's events tell the index. Don't count what you can't
measure; we'll measure it, they've measured it, I'm sure he'd measure it too. 12 blocks, 128 tokens,
2048 tokens. def route(request):\n\treturn index.lookup(request.prefix)\n\n\n    if holder is None:
größer über naïve café. こんにちは世界。 привет мир. {"role": "user", "content": "hello"}`;

const byteToChar = (() => {
  const chars = [];
  let next = 256;
  for (let b = 0; b < 256; b++) {
    const plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    chars.push(String.fromCharCode(plain ? b : next++));
  }
  return chars;
})();

// train merges the most frequent pair of symbols again and again.
function train(words, count) {
  const merges = [];
  for (let n = 0; n < count; n++) {
    const pairs = new Map();
    for (const word of words) {
      for (let i = 0; i + 1 < word.length; i++) {
        const key = word[i] + '\u0000' + word[i + 1];
        pairs.set(key, (pairs.get(key) ?? 0) + 1);
      }
    }
    const best = [...pairs].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))[0];
    if (!best || best[1] < 2) break;
    const [left, right] = best[0].split('\u0000');
    merges.push([left, right]);
    for (const word of words) {
      for (let i = 0; i + 1 < word.length; i++) {
        if (word[i] === left && word[i + 1] === right) word.splice(i, 2, left + right);
      }
    }
  }
  return merges;
}

const byteWords = (text) =>
  text.match(/ ?[^\s]+|\s+/g).map((word) => [...Buffer.from(word)].map((b) => byteToChar[b]));

function vocabulary(first, merges, more = []) {
  const vocab = {};
  let id = 0;
  for (const token of [...first, ...merges.map(([a, b]) => a + b), ...more]) {
    if (!(token in vocab)) vocab[token] = id++;
  }
  return vocab;
}

const added = (id, content, flags = {}) => ({
  id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: false, ...flags,
});
const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false };
const bpe = (vocab, merges, more = {}) => ({
  type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
  fuse_unk: false, byte_fallback: false, ignore_merges: false, vocab, merges, ...more,
});
const file = (more) => ({
  version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null, pre_tokenizer: null,
  post_processor: null, decoder: null, ...more,
});
const split = (pattern, behavior, invert = false) => ({ type: 'Split', pattern, behavior, invert });

const merges = train(byteWords(corpus), 220);
const vocab = vocabulary(byteToChar, merges, ['Ġreplica', 'whole']);
const size = Object.keys(vocab).length;
const specials = [
  added(size, '<|bos|>', { special: true }),
  added(size + 1, '<|im_start|>', { special: true }),
  added(size + 2, '<|im_end|>', { special: true }),
  added(size + 3, '<tool>'),
  added(size + 4, '<tool>>'),
];
const cl100k = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const chars = [...new Set([...corpus.replaceAll(' ', '▁')])].filter((c) => c !== 'q' && c !== 'z');
const charMerges = train([[...corpus.replaceAll(' ', '▁')]], 120)
  .filter(([a, b]) => ![...(a + b)].some((c) => c === 'q' || c === 'z'));
const hex = [...Array(256).keys()].map((b) => '<0x' + b.toString(16).toUpperCase().padStart(2, '0') + '>');

const files = {
  // Regex split, NFC, merges as pairs: like Qwen.
  pairs: file({
    normalizer: { type: 'NFC' }, added_tokens: specials, model: bpe(vocab, merges), decoder: byteLevel,
    pre_tokenizer: { type: 'Sequence', pretokenizers: [split({ Regex: cl100k }, 'Isolated'), byteLevel] },
    post_processor: byteLevel,
  }),
  // Merges as strings, whole words first, begin token by template: like Llama 3.
  whole: file({
    added_tokens: specials, decoder: byteLevel,
    model: bpe(vocab, merges.map((pair) => pair.join(' ')), { ignore_merges: true }),
    pre_tokenizer: { type: 'Sequence', pretokenizers: [split({ Regex: cl100k }, 'Isolated'), byteLevel] },
    post_processor: { type: 'Sequence', processors: [byteLevel, {
      type: 'TemplateProcessing',
      single: [{ SpecialToken: { id: '<|bos|>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
      pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
      special_tokens: { '<|bos|>': { id: '<|bos|>', ids: [size], tokens: ['<|bos|>'] } },
    }] },
  }),
  // The byte-level step splits and puts a space first: like GPT-2.
  classic: file({
    added_tokens: specials, model: bpe(vocab, merges),
    pre_tokenizer: { ...byteLevel, add_prefix_space: true, use_regex: true },
  }),
  // Flags of added tokens, one of them found after normalization.
  flags: file({
    normalizer: { type: 'Sequence', normalizers: [{ type: 'NFKC' }, { type: 'Replace', pattern: { String: 'ss' }, content: 'ß' }] },
    model: bpe(vocab, merges), pre_tokenizer: byteLevel,
    added_tokens: [
      added(size, '[L]', { lstrip: true }), added(size + 1, '[R]', { rstrip: true }), added(size + 2, '[B]', { lstrip: true, rstrip: true }),
      added(size + 3, 'word', { single_word: true }), added(size + 4, 'ﬁn', { normalized: true }), added(size + 5, 'mass', { normalized: true }),
    ],
  }),
  // Digits, and every behaviour of a split.
  splits: file({
    model: bpe(vocab, merges),
    pre_tokenizer: { type: 'Sequence', pretokenizers: [
      { type: 'Digits', individual_digits: true }, split({ String: '-' }, 'MergedWithPrevious'), split({ String: '+' }, 'MergedWithNext'),
      split({ Regex: '[.,]' }, 'Removed'), split({ Regex: '[a-z]+' }, 'Contiguous', true), byteLevel,
    ] },
  }),
  // Characters with bytes as a last resort: like Gemma and Llama 2.
  characters: file({
    added_tokens: [added(0, '<unk>', { special: true }), added(1, '<bos>', { special: true })],
    normalizer: { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: '▁' }, { type: 'Replace', pattern: { String: ' ' }, content: '▁' }] },
    model: bpe(vocabulary(['<unk>', '<bos>', ...hex, ...chars], charMerges), charMerges,
      { unk_token: '<unk>', fuse_unk: true, byte_fallback: true }),
    decoder: { type: 'Sequence', decoders: [{ type: 'Replace', pattern: { String: '▁' }, content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' }] },
  }),
  // Unknown characters become one token, neighbours joined.
  unknown: file({
    added_tokens: [added(0, '<unk>', { special: true })],
    normalizer: { type: 'Replace', pattern: { String: ' ' }, content: '▁' },
    model: bpe(vocabulary(['<unk>', ...chars], charMerges), charMerges, { unk_token: '<unk>', fuse_unk: true }),
  }),
};

const texts = [
  '', ' ', '  ', 'a', 'The replica holds the prefix.', " don't DON'T we'll WE'LL I'ſ it'd", 'whole wholes  whole replica',
  'tabs\tand\n\nlines\r\n \n  end  ', '1234567 12 3 ٣٤٥ ½ Ⅷ', 'größer cafe\u0301 Å ﬁn ﬁ ss mass mass', 'こんにちは世界 привет 한국어',
  '👩\u200d👩\u200d👧 🇩🇪 \u{10ffff}', '\u0000\u0001\u007f\u0085\u00a0\u2028\u3000\ufeff', '<|im_start|>user\nhi<|im_end|>\n<|im_start|>',
  '<|im_start|', '<tool><tool>>> <tool', ' [L] x [R] y [B] z [L][R]', 'word words word-word swordword word', 'a-b--c +d++e, f.g,,h--',
  'zq quiz q z', '    return index.lookup(request.prefix)\n', 'x'.repeat(200) + ' ' + 'the '.repeat(50), '▁a ▁', '{"role": "user", "content": "hello"}',
  'e\u0301\u0323 a\u0328\u0301 \u1e9b\u0323', 'ﷺ ①②③ Ｆｕｌｌ',
];

const golden = {};
for (const [name, content] of Object.entries(files)) {
  writeFileSync(join(out, name + '.json'), JSON.stringify(content) + '\n');
  const tokenizer = Tokenizer.fromFile(join(out, name + '.json'));
  golden[name] = [];
  for (const text of texts) {
    const plain = await tokenizer.encode(text, null, { addSpecialTokens: false });
    const special = await tokenizer.encode(text, null, { addSpecialTokens: true });
    golden[name].push({ text, plain: plain.getIds(), special: special.getIds() });
  }
}
writeFileSync(join(out, 'golden.json'), JSON.stringify(golden) + '\n');
