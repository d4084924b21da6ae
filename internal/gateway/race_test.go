// SPDX-License-Identifier: Apache-2.0

//go:build race

package gateway_test

// raceEnabled says that everything takes many times as long.
const raceEnabled = true
