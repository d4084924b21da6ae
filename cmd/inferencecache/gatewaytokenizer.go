// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/gateway"
)

// addTokenizerFlags adds what says how prompts become token ids.
func addTokenizerFlags(flags *pflag.FlagSet, g *gateway.Options) {
	flags.StringVar((*string)(&g.Tokenizer), "tokenizer", string(gateway.TokenizeByEngine),
		"where token ids come from: render (the engines' render endpoints), engine (their /tokenize), "+
			"local (--tokenizer-dir), ids (only those clients send) or none")
	flags.StringArrayVar(&g.Tokenizing.Folders, "tokenizer-dir", nil,
		"folder with a model's tokenizer.json, tokenizer_config.json and chat_template.jinja; "+
			"DIR, or MODEL=DIR, which may be repeated; for local, and for the chats of sglang with engine")
	flags.StringVar(&g.Tokenizing.RenderURL, "render-url", "", "render service for --tokenizer render; default the engines themselves")
	flags.IntVar(&g.Tokenizing.MaxBytes, "max-tokenize-bytes", 1<<20, "largest prompt that is tokenized; longer ones are compared as text")
	flags.DurationVar(&g.Parity.Interval, "parity-interval", time.Hour,
		"time between canary prompts that prove our token ids to be the engines'; 0 sends none")
}
