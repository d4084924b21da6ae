// SPDX-License-Identifier: Apache-2.0

package bpe

// byteRunes is the character that stands for each byte in the vocabulary of a
// byte-level tokenizer: printable Latin-1 stands for itself, the rest follows
// in order from U+0100.
func byteRunes() (runes [256]rune) {
	next := rune(0x100)
	for b := range runes {
		switch {
		case b >= '!' && b <= '~', b >= 0xa1 && b <= 0xac, b >= 0xae:
			runes[b] = rune(b)
		default:
			runes[b] = next
			next++
		}
	}
	return runes
}

// runeBytes is the inverse of byteRunes.
func runeBytes() map[rune]byte {
	inverse := make(map[rune]byte, 256)
	for b, r := range byteRunes() {
		inverse[r] = byte(b)
	}
	return inverse
}

// rawToken turns an entry of a byte-level vocabulary into the bytes it stands
// for. False means that no text can ever become it.
func rawToken(inverse map[rune]byte, token string) (string, bool) {
	raw := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := inverse[r]
		if !ok {
			return "", false
		}
		raw = append(raw, b)
	}
	return string(raw), true
}
