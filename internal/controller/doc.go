// SPDX-License-Identifier: Apache-2.0

// Package controller keeps the servers and the cluster in step: declared
// policy goes to every server, and what the servers know goes into the status
// of the resources.
//
// The Pusher sends, the Poller reads. Both run on the elected leader and know
// the servers through a Discovery.
package controller
