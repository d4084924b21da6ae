// SPDX-License-Identifier: Apache-2.0

// Package zmtp speaks ZMTP 3.0 and 3.1, the wire protocol of ZeroMQ, with the
// NULL mechanism over TCP and Unix sockets.
//
// It is connection level: Dial and Listener.Accept return one Conn to one
// peer, and a Conn that failed stays failed. Reconnecting belongs to the
// caller, who learns of a lost peer at once instead of after a redial. Pub and
// Router build the server sides of event streams and replays on top.
//
// Every byte from a peer is untrusted: sizes are limited, memory grows with
// what arrives and not with what a header claims, and no peer can hold a
// handshake, a write or a close beyond its timeout.
package zmtp
