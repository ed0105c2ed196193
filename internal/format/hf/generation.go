package hf

import "plumbline/internal/format"

// Generation is a generation_config.json. A member that the file leaves out has the value that generate takes for it in
// transformers@5.23.0 (GenerationConfig._get_default_generation_params).
type Generation struct {
	BOS, PAD int   // ids of tokens, -1 for none
	EOS      []int // ids of the tokens that end a text

	DoSample          bool    // false: greedy
	Temperature       float64 // 1
	TopK              int     // 50; 0 keeps all
	TopP              float64 // 1 keeps all
	MinP              float64 // 0 keeps all
	RepetitionPenalty float64 // 1 changes nothing
	MaxLength         int     // tokens of prompt and text together, 20
	MaxNewTokens      int     // 0 if not said

	Object *format.Object // the document, for what has no field
}

// ParseGeneration reads the text of a generation_config.json; file is for messages.
func ParseGeneration(file string, text []byte) (*Generation, error) {
	o, err := format.ParseObject(file, text)
	if err != nil {
		return nil, err
	}
	g := &Generation{
		BOS:               o.Int("bos_token_id", -1, -1, maxSize),
		PAD:               o.Int("pad_token_id", -1, -1, maxSize),
		EOS:               o.Ints("eos_token_id", 0, maxSize),
		DoSample:          o.Bool("do_sample", false),
		Temperature:       o.Float("temperature", 1, 0, 1e9),
		TopK:              o.Int("top_k", 50, 0, maxSize),
		TopP:              o.Float("top_p", 1, 0, 1),
		MinP:              o.Float("min_p", 0, 0, 1),
		RepetitionPenalty: o.Float("repetition_penalty", 1, 0, 1e9),
		MaxLength:         o.Int("max_length", 20, 0, maxPositions),
		MaxNewTokens:      o.Int("max_new_tokens", 0, 0, maxPositions),
		Object:            o,
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	return g, nil
}
