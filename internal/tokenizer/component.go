package tokenizer

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// component is a normalizer, pre-tokenizer, post-processor or decoder of a tokenizer.json.
type component struct {
	kind     string
	flags    map[string]bool
	pattern  string // regular expression of a Split
	behavior string
	list     []component // of a Sequence
	single   []piece     // of a TemplateProcessing
	ids      map[string][]int
}

// piece is an element of a template: a special token, or the text if token is "".
type piece struct{ token string }

// maxParts bounds the elements of a Sequence or a template.
const maxParts = 16

// readComponent reads a component, nil for null.
func readComponent(s *format.Scanner, inSequence bool) (*component, error) {
	if s.Kind() == format.KindNull {
		return nil, s.Null()
	}
	c := &component{flags: map[string]bool{}}
	return c, s.Object(func(key string) error { return c.member(s, key, inSequence) })
}

func (c *component) member(s *format.Scanner, key string, inSequence bool) (err error) {
	switch key {
	case "type":
		c.kind, err = s.String()
	case "add_prefix_space", "trim_offsets", "use_regex", "individual_digits", "invert":
		c.flags[key], err = s.Bool()
	case "behavior":
		c.behavior, err = s.String()
	case "pattern":
		return s.Object(func(kind string) (err error) {
			c.pattern, err = s.String()
			if err == nil && kind != "Regex" {
				err = s.Malformed("pattern %.32q of the kind %.32q, want a Regex", c.pattern, kind)
			}
			return err
		})
	case "normalizers", "pretokenizers", "processors", "decoders":
		if inSequence {
			return s.Malformed("a Sequence inside a Sequence")
		}
		return s.Array(func(i int) error {
			part, err := readComponent(s, true)
			if err == nil && i == maxParts {
				err = s.Malformed("a Sequence of more than %d", maxParts)
			}
			if err == nil && part == nil {
				err = s.Malformed("null inside a Sequence")
			}
			if err != nil {
				return err
			}
			c.list = append(c.list, *part)
			return nil
		})
	case "single":
		return s.Array(func(i int) error {
			p, err := readPiece(s)
			if err == nil && i == maxParts {
				err = s.Malformed("a template of more than %d parts", maxParts)
			}
			c.single = append(c.single, p)
			return err
		})
	case "pair":
		return s.Skip() // for two texts at once, which a causal model does not get
	case "special_tokens":
		c.ids = map[string][]int{}
		return s.Object(func(name string) error {
			ids, err := readTemplateIDs(s)
			if err == nil && len(c.ids) == maxParts {
				err = s.Malformed("a template with more than %d special tokens", maxParts)
			}
			c.ids[name] = ids
			return err
		})
	default:
		if err = s.Skip(); err == nil {
			err = s.Malformed("%.64q is not a known member of a component of a tokenizer", key)
		}
	}
	return err
}

// readPiece reads {"SpecialToken": {"id": name, "type_id": 0}} or {"Sequence": {"id": "A", "type_id": 0}}.
func readPiece(s *format.Scanner) (p piece, err error) {
	n := 0
	err = s.Object(func(kind string) error {
		n++
		id := ""
		err := s.Object(func(key string) (err error) {
			if key == "id" {
				id, err = s.String()
				return err
			}
			return s.Skip()
		})
		switch {
		case err != nil:
			return err
		case kind == "SpecialToken" && id != "":
			p.token = id
			return nil
		case kind == "Sequence" && id == "A":
			return nil
		}
		return s.Malformed("template part %.32q of the kind %.32q, want a SpecialToken or the Sequence A", id, kind)
	})
	if err == nil && n != 1 {
		err = s.Malformed("a template part with %d kinds, want one", n)
	}
	return p, err
}

// readTemplateIDs reads {"id": name, "ids": [..], "tokens": [..]} and returns the ids.
func readTemplateIDs(s *format.Scanner) (ids []int, err error) {
	err = s.Object(func(key string) error {
		if key != "ids" {
			return s.Skip()
		}
		return s.Array(func(i int) error {
			id, err := s.Int()
			if err == nil && (i == maxParts || id < 0 || id >= maxVocab) {
				err = s.Malformed("id %d at place %d, want at most %d ids in [0, %d)", id, i, maxParts, maxVocab)
			}
			ids = append(ids, int(id))
			return err
		})
	})
	return ids, err
}

// interpret gives the components their meaning.
func (r *reader) interpret() error {
	s := &r.source
	bad := func(where, msg string, args ...any) error { return format.Malformed(s.file, where, msg, args...) }
	if r.model == nil {
		return bad("model", "is missing")
	}
	if r.model.kind != "BPE" {
		return bad("model.type", "%.32q, want \"BPE\"", r.model.kind)
	}
	normalizers := flatten(r.normalizer)
	for _, n := range normalizers {
		if n.kind != "NFC" || len(normalizers) > 1 {
			return bad("normalizer", "%s, want NFC or none", kinds(normalizers))
		}
		s.normalize = nfc
	}
	steps, err := preTokenizer(r.splitter)
	if err != "" {
		return bad("pre_tokenizer", "%s", err)
	}
	s.steps = steps
	if d := flatten(r.decoder); len(d) != 1 || d[0].kind != "ByteLevel" {
		return bad("decoder", "%s, want ByteLevel", kinds(d))
	}
	seen := false
	for _, p := range flatten(r.template) {
		switch {
		case p.kind == "ByteLevel": // moves offsets, not ids
		case p.kind == "TemplateProcessing" && !seen:
			seen = true
			if err := r.interpretTemplate(&p); err != nil {
				return err
			}
		default:
			return bad("post_processor", "%s, want ByteLevel, one TemplateProcessing, or both", kinds(flatten(r.template)))
		}
	}
	return nil
}

func (r *reader) interpretTemplate(c *component) error {
	texts := 0
	for _, p := range c.single {
		if p.token == "" {
			texts++
			continue
		}
		ids, ok := c.ids[p.token]
		if !ok || len(ids) != 1 {
			return format.Malformed(r.source.file, "post_processor", "special token %.64q of the template has %d ids, want one", p.token, len(ids))
		}
		n := named{p.token, ids[0]}
		if texts == 0 {
			r.source.before = append(r.source.before, n)
		} else {
			r.source.after = append(r.source.after, n)
		}
	}
	if texts != 1 {
		return format.Malformed(r.source.file, "post_processor", "the template has the text %d times, want once", texts)
	}
	return nil
}

// flatten returns the parts of a Sequence, or the component itself.
func flatten(c *component) []component {
	switch {
	case c == nil:
		return nil
	case c.kind == "Sequence":
		return c.list
	}
	return []component{*c}
}

// kinds names components, for messages.
func kinds(list []component) string {
	if len(list) == 0 {
		return "none"
	}
	var names []string
	for _, c := range list {
		names = append(names, fmt.Sprintf("%.32q", c.kind))
	}
	return strings.Join(names, ", ")
}

// preTokenizer returns the steps of a pre-tokenizer, or says why it is not one of the known.
func preTokenizer(c *component) (steps []step, bad string) {
	list := flatten(c)
	for i, c := range list {
		last := i == len(list)-1
		switch c.kind {
		case "Digits":
			st := step{split: splitNumbers}
			if c.flags["individual_digits"] {
				st.split = splitDigits
			}
			steps = append(steps, st)
		case "Split":
			f, ok := patterns[c.pattern]
			if !ok {
				return nil, fmt.Sprintf("the pattern %.200q is not known; known are those of GPT-2, Qwen2 and Llama 3", c.pattern)
			}
			if c.behavior != "Isolated" || c.flags["invert"] {
				return nil, fmt.Sprintf("Split with behavior %.32q and invert %t, want Isolated and false", c.behavior, c.flags["invert"])
			}
			steps = append(steps, step{split: f})
		case "ByteLevel":
			st := step{prefix: c.flags["add_prefix_space"]}
			if regex, given := c.flags["use_regex"]; regex || !given {
				st.split = splitGPT2
			}
			steps = append(steps, st)
			if !last {
				return nil, fmt.Sprintf("%s, want ByteLevel at the end", kinds(list))
			}
		default:
			return nil, fmt.Sprintf("%.32q is not known; known are Split, Digits, ByteLevel and a Sequence of these", c.kind)
		}
	}
	if !slices.ContainsFunc(list, func(c component) bool { return c.kind == "ByteLevel" }) {
		return nil, fmt.Sprintf("%s, want ByteLevel at the end", kinds(list))
	}
	return steps, ""
}
