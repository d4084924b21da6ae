// SPDX-License-Identifier: Apache-2.0

package blockhash

import "encoding/binary"

// Major types of canonical CBOR, shifted into place, and the null value.
const (
	cborUint  = 0 << 5
	cborBytes = 2 << 5
	cborText  = 3 << 5
	cborArray = 4 << 5
	cborNull  = 0xf6
)

// appendHead appends a CBOR head in its shortest form.
func appendHead(dst []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(dst, major|byte(n))
	case n <= 0xff:
		return append(dst, major|24, byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(dst, major|25), uint16(n))
	case n <= 0xffffffff:
		return binary.BigEndian.AppendUint32(append(dst, major|26), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(dst, major|27), n)
	}
}

func appendText(dst []byte, text string) []byte {
	return append(appendHead(dst, cborText, uint64(len(text))), text...)
}
