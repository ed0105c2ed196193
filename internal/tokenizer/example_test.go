package tokenizer_test

import (
	"fmt"

	"plumbline/internal/tokenizer"
)

func ExampleFromGGUF() {
	t, err := tokenizer.FromGGUF("model.gguf", tokenizer.GGUF{
		Pre:    "gpt-2",
		Tokens: []string{"h", "e", "l", "o", "Ġ", "he", "ll", "hell", "<|end|>"},
		Types:  []int32{1, 1, 1, 1, 1, 1, 1, 1, 3},
		Merges: []string{"h e", "l l", "he ll"},
	})
	if err != nil {
		panic(err)
	}
	const text = "hello hell<|end|>"
	fmt.Println(t.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true}))
	fmt.Println(t.CheckVocab(8))
	fmt.Printf("%q has no token\n", t.Missing()[:3])
	// Output:
	// [7 3 4 7 8]
	// model.gguf: vocabulary: token "<|end|>" has the id 8, the embedding has 8 rows: this is the tokenizer of another model
	// "\x00\x01\x02" has no token
}
