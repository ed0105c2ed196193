package checkpoint

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// SpecialTokens checks the tokens that begin, end and pad a text.
var SpecialTokens = &check.Check[*Input]{
	Name: "tokenizer/special",
	Doc: `the ids of special tokens have rows in the embedding, generation ends at the token with which the tokenizer ends, and the chat
template of --base is still there

generate stops at eos_token_id of generation_config.json, of config.json where that file is missing; an id without a row is never
drawn, so no text ends. torch refuses a pad_token_id of config.json without a row. A tokenizer whose eos_token is another one than
those at which generation stops trains one end and waits for another, and with no eos_token_id at all none is waited for. Without a chat template every prompt is formatted another way.`,
	Source: "layout of a Hugging Face folder, tokenizer.json; faults P033, P054; transformers@5.23 generation/configuration_utils.py; torch@2.15 nn/modules/sparse.py",
	Fix:    "set eos_token_id and pad_token_id in config.json and generation_config.json to the tokenizer's; save the tokenizer with its template",
	Run: func(in *Input) ([]check.Result, error) {
		return each(in.judged(), func(p place) (out []check.Result, err error) {
			if len(p.u.tensors(weightsRole)) == 0 {
				return nil, nil
			}
			if p.u.Kind == Whole && p.u.Config != nil {
				out, err = p.f.specialFindings(p.u)
			}
			return append(out, in.templateFindings(p.f, p.u)...), err
		})
	},
}

// idsOf returns the ids of a special token in a configuration: one, a list, or none.
func idsOf(o *format.Object, key string) []int {
	if o == nil || !o.Has(key) {
		return nil
	}
	list, one := o.Members[key].([]any)
	if !one {
		list = []any{o.Members[key]}
	}
	var ids []int
	for _, v := range list {
		if n, ok := v.(format.Number); ok {
			var id int
			if _, err := fmt.Sscanf(string(n), "%d", &id); err == nil && id >= 0 { // −1 stands for none
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func (f *Folder) specialFindings(u *Unit) (out []check.Result, err error) {
	subject := f.at(u)
	rows := embeddingRows(u)
	if rows == 0 && u.Model != nil {
		rows = u.Model.Vocab
	} else if rows == 0 {
		rows = max(u.number("", "vocab_size"), u.number("text_config", "vocab_size"))
	}
	generation, err := f.object(u, "generation_config.json")
	if err != nil {
		return nil, err
	}
	beyond := func(ids []int) (bad []string) {
		for _, id := range ids {
			if rows > 0 && id >= rows {
				bad = append(bad, fmt.Sprint(id))
			}
		}
		return bad
	}
	if bad := beyond(idsOf(u.Config.Object, "pad_token_id")); len(bad) > 0 {
		out = append(out, fail(subject, "SPECIAL-RANGE", "tokens were added, and the embedding was not resized: torch refuses to make it", "pad_token_id of config.json is %s, the embedding has %d rows", several(bad), rows))
	}
	source, stops := "generation_config.json", idsOf(generation, "eos_token_id")
	if stops == nil {
		source, stops = "config.json", idsOf(u.Config.Object, "eos_token_id")
	}
	switch bad := beyond(stops); {
	case len(bad) > 0 && len(bad) == len(stops):
		out = append(out, fail(subject, "SPECIAL-RANGE", "no text ends: the token that ends it has no row", "eos_token_id of %s is %s, the embedding has %d rows", source, several(bad), rows))
	case len(bad) > 0:
		out = append(out, warn(subject, "SPECIAL-RANGE", "a token that ends a text has no row", "eos_token_id of %s holds %s, the embedding has %d rows", source, several(bad), rows))
	}
	t := u.Tokenizer
	if t != nil && t.EOS >= 0 && len(stops) > 0 && !slices.Contains(stops, t.EOS) {
		out = append(out, warn(subject, "EOS-MISMATCH", "the end that was trained is not the one that generation waits for", "eos_token %.32q of the tokenizer is %d, eos_token_id of %s is %s", t.EOSText, t.EOS, source, strings.Trim(fmt.Sprint(stops), "[]")))
	}
	switch {
	case t != nil && t.File != "" && t.Size > 0 && t.EOSText != "" && t.EOS < 0:
		out = append(out, fail(subject, "EOS-UNKNOWN", "no text ends: the tokenizer has no such token", "eos_token %.32q is no token of tokenizer.json", t.EOSText))
	case len(stops) == 0 && u.generates() && (u.has("generation_config.json") || t != nil):
		out = append(out, warn(subject, "NO-EOS", "no text ends before max_new_tokens: generate has no token to stop at", "neither generation_config.json nor config.json has an eos_token_id"))
	}
	if len(out) == 0 && rows > 0 && len(stops) > 0 {
		out = append(out, pass(subject, len(stops), "eos_token_id of %s is %s of %d", source, strings.Trim(fmt.Sprint(stops), "[]"), rows))
	}
	return out, nil
}

// generates reports whether the class in config.json is one that generates text.
func (u *Unit) generates() bool {
	return slices.ContainsFunc(u.Config.Architectures, func(a string) bool {
		return strings.HasSuffix(a, "ForCausalLM") || strings.HasSuffix(a, "LMHeadModel") || strings.HasSuffix(a, "ForConditionalGeneration")
	})
}

// templateFindings compares the chat template with that of --base.
func (in *Input) templateFindings(f *Folder, u *Unit) []check.Result {
	if in.Base == nil || u.Tokenizer == nil || u.Tokenizer.Chat || u.Kind != Whole && u.Kind != Adapter {
		return nil
	}
	for _, b := range in.Base.Units {
		if b.Tokenizer != nil && b.Tokenizer.Chat {
			return []check.Result{warn(f.at(u), "CHAT-TEMPLATE", "the chat template was lost with the save: prompts are formatted another way", "%s has a chat template, the tokenizer here has none", path.Join(in.Base.at(b), "tokenizer_config.json"))}
		}
	}
	return nil
}
