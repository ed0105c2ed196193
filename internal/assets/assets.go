// Package assets holds the models and the text that are part of the program, so that a trainer runs on a fresh machine without a
// network. The weights are what make models writes.
package assets

import "embed"

// Tiny is a causal model of two layers in the layout of Qwen2 with a tokenizer of bytes: config.json, tokenizer.json and
// model.safetensors, trained on additions until it answers about a third of them.
//
//go:embed tiny
var Tiny embed.FS

// TinyGPTJ is a causal model of two layers in the layout of GPT-J with a tokenizer of bytes: config.json, tokenizer.json and
// model.safetensors, trained to answer questions about items with lists of short words.
//
//go:embed tiny_gptj
var TinyGPTJ embed.FS

// TinyMasked is a masked model of two layers over the 65 characters of nanoGPT's shakespeare_char: config.json, vocabulary.json and
// model.safetensors, trained to fill in Sonnets. TinyJudge is one in the same layout that scores a text by the share of it that is
// synthetic.
//
//go:embed tiny_masked
var TinyMasked embed.FS

//go:embed tiny_judge
var TinyJudge embed.FS

// Sonnets are sixteen of Shakespeare's, printed in 1609.
//
//go:embed text/sonnets.txt
var Sonnets string
