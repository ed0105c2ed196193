package pretrained

import (
	"errors"
	"fmt"

	"plumbline/internal/format"
	"plumbline/internal/tokenizer"
)

// Text is what a model knows about texts.
type Text struct {
	Tokenizer *tokenizer.Tokenizer // nil if it was left out
	EOS       []int                // the tokens that end a text, in the order of the file
	Template  string               // the chat template, "" if there is none

	path string // of the model, for messages
}

// Encode returns the tokens of a prompt as transformers' tokenizer does by default: with what the post-processor adds. With
// parseSpecial special tokens that are written out are those tokens and no text.
func (x *Text) Encode(text string, parseSpecial bool) []int {
	return x.Tokenizer.Encode(text, tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: parseSpecial})
}

// ErrTemplate is the error of Chat for a model whose chat template is absent or unknown.
var ErrTemplate = errors.New("pretrained: no known chat template")

// Chat returns the tokens of a conversation of one message by the user, up to where the model's answer starts.
func (x *Text) Chat(message string) ([]int, error) {
	if x.Template == "" {
		return nil, fmt.Errorf("%w: %s has none", ErrTemplate, x.path)
	}
	t, err := tokenizer.FindChatTemplate(x.Template)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrTemplate, x.path, err)
	}
	ids, _, err := t.Encode(x.Tokenizer, []tokenizer.Message{{Role: "user", Content: message}}, true)
	if err != nil {
		return nil, format.Malformed(x.path, "chat template", "%v", err)
	}
	return ids, nil
}

// fits refuses a tokenizer of another model: one with tokens that have no row in the embedding, or without the tokens that
// end a text.
func (s *Source) fits() error {
	vocab := s.Config.Vocab
	if err := s.Tokenizer.CheckVocab(vocab); err != nil {
		return err
	}
	for _, id := range s.EOS {
		if _, ok := s.Tokenizer.Token(id); !ok {
			return format.Malformed(s.ConfigFile, "eos_token_id", "is %d, which the tokenizer does not have: it is another model's", id)
		}
	}
	if n := s.Tokenizer.MaxID() + 1; s.exact && n != vocab {
		return format.Malformed(s.Path, "tokenizer.ggml.tokens", "has %d tokens, the embedding %d rows", n, vocab)
	} else if n < vocab {
		s.Notes = append(s.Notes, fmt.Sprintf("%s: %d of %d rows of the embedding have no token; they are never sampled", s.Path, vocab-n, vocab))
	}
	return nil
}
