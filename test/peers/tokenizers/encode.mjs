// SPDX-License-Identifier: Apache-2.0
//
// Usage: node encode.mjs MODULES TOKENIZER.json < texts > ids
// Encodes texts, one JSON string a line, with the reference library installed
// under MODULES. Each answer is one line: {"plain":[...],"special":[...]}.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { once } from 'node:events';

const [modules, file] = process.argv.slice(2);
const { Tokenizer } = createRequire(modules + '/package.json')('tokenizers');
const tokenizer = Tokenizer.fromFile(file);

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const text = JSON.parse(line);
  const plain = await tokenizer.encode(text, null, { addSpecialTokens: false });
  const special = await tokenizer.encode(text, null, { addSpecialTokens: true });
  const answer = JSON.stringify({ plain: plain.getIds(), special: special.getIds() });
  if (!process.stdout.write(answer + '\n')) await once(process.stdout, 'drain');
}
