package dump

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"

	"plumbline/internal/format"
)

// Schema is the version of the format that is written. Version 1 has no sample_id, next_values and scores_shaped.
const Schema = 2

// Limits of the metadata of one file.
const (
	maxMetadata = 1 << 20 // bytes
	maxValues   = 1 << 16 // values inside options, scalars and lists
	maxPosition = 1 << 53 // of step, rank and the like: what a float64 counts exactly
)

// metadataKey is the entry of __metadata__ in a safetensors file that holds the JSON text.
const metadataKey = "plumbline"

// metadata is what one file says.
type metadata struct {
	Meta
	source     string // the file, or the JSON file beside it
	bf16       []string
	logitsRows []int // rows of the grid that logits holds; nil: all
	unknown    []string
	stepless   bool           // no step was said
	pairs      bool           // no algorithm was said, and the tensors are those of pairs
	said       map[string]any // the keys of specials that are there
}

// specials are the keys that may stand at the top of the metadata or among the options.
var specials = map[string]bool{
	"token_loss_includes_kl": true, "masked_fill": true, "scalars_scope": true, "compute_dtype": true,
	"lossy": true, "dlogp_scale": true, "logits_rows": true, "scores_shaped": true,
}

// computeDTypes maps the names of element types that trainers use to those of format.DType.
var computeDTypes = map[string]string{
	"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32", "fp64": "float64", "double": "float64",
}

// metaReader reads the metadata of one file.
type metaReader struct {
	s      *format.Scanner
	m      *metadata
	schema bool
	values int
}

// readMetadata reads the JSON text of the metadata; source is for messages.
func readMetadata(source string, text []byte) (*metadata, error) {
	if len(text) > maxMetadata {
		return nil, format.Malformed(source, "", "metadata of %d bytes, want at most %d", len(text), maxMetadata)
	}
	r := metaReader{s: format.NewScanner(source, text, 0), m: &metadata{source: source, said: map[string]any{}, stepless: true}}
	err := r.s.Document(func(key string) error { return inKey(r.member(key), key) })
	if err != nil {
		return nil, explainNumber(err)
	}
	if !r.schema {
		return nil, format.Malformed(source, "key schema", "is missing, want 1 to %d", Schema)
	}
	r.specials()
	m := &r.m.Meta
	switch {
	case m.WorldSize > 0 && m.Rank >= m.WorldSize:
		return nil, format.Malformed(source, "key rank", "is %d, but world_size is %d", m.Rank, m.WorldSize)
	case m.MicroBatches > 0 && m.MicroBatch >= m.MicroBatches:
		return nil, format.Malformed(source, "key micro_batch", "is %d, but micro_batches is %d", m.MicroBatch, m.MicroBatches)
	}
	return r.m, nil
}

// member reads the value of a key of the metadata.
func (r *metaReader) member(key string) (err error) {
	m := r.m
	if specials[key] {
		return r.special(key)
	}
	if r.s.Kind() == format.KindNull && key != "schema" { // Python's None: not said
		return r.s.Null()
	}
	switch key {
	case "schema":
		r.schema = true
		n, err := r.s.Int()
		if err == nil && (n < 1 || n > Schema) {
			err = r.s.Malformed("is %d, want 1 to %d", n, Schema)
		}
		return err
	case "framework":
		m.Framework, err = r.s.String()
	case "version":
		m.Version, err = r.s.String()
	case "algorithm":
		m.Algorithm, err = r.s.String()
		m.Algorithm = strings.ToLower(m.Algorithm)
	case "profile":
		m.Profile, err = r.s.String()
	case "run":
		m.Run, err = r.s.String()
	case "step":
		m.stepless = false
		m.Step, err = r.position(0)
	case "rank":
		m.Rank, err = r.position(0)
	case "world_size":
		m.WorldSize, err = r.position(1)
	case "micro_batch":
		m.MicroBatch, err = r.position(0)
	case "micro_batches":
		m.MicroBatches, err = r.position(1)
	case "align":
		m.Align, err = r.align()
	case "options":
		err = r.s.Object(func(name string) error { return inKey(r.option(name), name) })
	case "scalars":
		err = r.s.Object(func(name string) error { return inKey(r.scalar(name), name) })
	case "bf16":
		m.bf16, err = r.names()
	default:
		m.unknown = append(m.unknown, key)
		err = r.s.Skip()
	}
	return err
}

// position reads an integer that is at least least.
func (r *metaReader) position(least int64) (int, error) {
	n, err := r.s.Int()
	switch {
	case err != nil:
	case n < least:
		err = r.s.Malformed("is %d, want at least %d", n, least)
	case n > maxPosition || int64(int(n)) != n:
		err = r.s.Malformed("is %d, want at most 2⁵³", n)
	}
	return int(n), err
}

func (r *metaReader) align() (Align, error) {
	text, err := r.s.String()
	if err != nil {
		return 0, err
	}
	for a := AlignResponse; a <= AlignUnshifted; a++ {
		if text == a.String() {
			return a, nil
		}
	}
	return 0, r.s.Malformed("is %.64q, want response, shifted or unshifted", text)
}

func (r *metaReader) option(name string) error {
	if specials[name] {
		return r.special(name)
	}
	v, err := r.value()
	r.m.Options = append(r.m.Options, Option{name, v})
	return err
}

func (r *metaReader) scalar(name string) error {
	v := math.NaN()
	var err error
	if r.s.Kind() == format.KindNull {
		err = r.s.Null()
	} else {
		v, err = r.s.Float()
	}
	r.m.Scalars = append(r.m.Scalars, Scalar{name, v})
	return errors.Join(r.count(), err)
}

// special reads a value of one of the specials, which may be said twice if it is the same both times.
func (r *metaReader) special(key string) error {
	if r.s.Kind() == format.KindNull {
		return r.s.Null()
	}
	var v any
	var err error
	switch key {
	case "token_loss_includes_kl", "scores_shaped":
		v, err = r.s.Bool()
	case "masked_fill":
		v, err = r.s.Float()
	case "dlogp_scale":
		var f float64
		if f, err = r.s.Float(); err == nil && f == 0 {
			err = r.s.Malformed("is 0, which would leave nothing of the gradients")
		}
		v = f
	case "scalars_scope":
		var text string
		if text, err = r.s.String(); err == nil && text != "optimizer_step" && text != "micro_batch" {
			err = r.s.Malformed("is %.64q, want optimizer_step or micro_batch", text)
		}
		v = text
	case "compute_dtype":
		var text string
		text, err = r.s.String()
		text = strings.TrimPrefix(text, "torch.")
		if name := computeDTypes[text]; name != "" {
			text = name
		}
		v = text
	case "lossy":
		v, err = r.names()
	case "logits_rows":
		v, err = r.rows()
	}
	if err != nil {
		return err
	}
	if old, ok := r.m.said[key]; ok && !reflect.DeepEqual(old, v) {
		return r.s.Malformed("is %s among the options and %s at the top of the metadata, or the reverse: want one value", show(v), show(old))
	}
	r.m.said[key] = v
	return nil
}

// specials moves what was said under the keys of specials to its fields.
func (r *metaReader) specials() {
	m := r.m
	m.DLogpScale = 1
	for key, v := range m.said {
		switch key {
		case "token_loss_includes_kl":
			b := v.(bool)
			m.TokenLossIncludesKL = &b
		case "scores_shaped":
			b := v.(bool)
			m.ScoresShaped = &b
		case "masked_fill":
			f := v.(float64)
			m.MaskedFill = &f
		case "dlogp_scale":
			m.DLogpScale = v.(float64)
		case "scalars_scope":
			m.ScalarsScope = v.(string)
		case "compute_dtype":
			m.ComputeDType = v.(string)
		case "lossy":
			m.Lossy = v.([]string)
		case "logits_rows":
			m.logitsRows = v.([]int)
		}
	}
}

func (r *metaReader) count() error {
	if r.values++; r.values > maxValues {
		return r.s.Malformed("more than %d values", maxValues)
	}
	return nil
}

// names reads a list of names of tensors.
func (r *metaReader) names() ([]string, error) {
	list := []string{}
	err := r.s.Array(func(int) error {
		name, err := r.s.String()
		list = append(list, name)
		return errors.Join(r.count(), err)
	})
	return list, err
}

// rows reads a list of increasing row numbers.
func (r *metaReader) rows() ([]int, error) {
	list := []int{}
	err := r.s.Array(func(i int) error {
		n, err := r.position(0)
		if err == nil && i > 0 && n <= list[i-1] {
			err = r.s.Malformed("%d after %d, want increasing rows", n, list[i-1])
		}
		list = append(list, n)
		return errors.Join(r.count(), err)
	})
	return list, err
}

// value reads a value of any kind.
func (r *metaReader) value() (any, error) {
	if err := r.count(); err != nil {
		return nil, err
	}
	switch r.s.Kind() {
	case format.KindBool:
		return r.s.Bool()
	case format.KindNumber:
		return r.s.Float()
	case format.KindString:
		return r.s.String()
	case format.KindArray:
		list := []any{}
		err := r.s.Array(func(int) error {
			v, err := r.value()
			list = append(list, v)
			return err
		})
		return list, err
	case format.KindObject:
		object := map[string]any{}
		err := r.s.Object(func(key string) (err error) {
			object[key], err = r.value()
			return err
		})
		return object, err
	}
	return nil, r.s.Null()
}

// sameMetadata reports whether two JSON texts, both read without an error, hold the same keys and values.
func sameMetadata(a, b []byte) bool {
	var v [2]any
	for i, text := range [][]byte{a, b} {
		r := metaReader{s: format.NewScanner("", text, 0)}
		var err error
		if v[i], err = r.value(); err != nil {
			return false
		}
	}
	return reflect.DeepEqual(v[0], v[1])
}

// inKey puts the key of the metadata in which an error occurred in front of its place.
func inKey(err error, key string) error {
	var e *format.Error
	if !errors.As(err, &e) {
		return err
	}
	place := fmt.Sprintf("key %.64q", key)
	if e.Where != "" {
		place += ", " + strings.TrimPrefix(e.Where, "key ")
	}
	e.Where = place
	return e
}

// explainNumber adds what to write for a number that JSON does not have.
func explainNumber(err error) error {
	if e, ok := errors.AsType[*format.Error](err); ok && (strings.Contains(e.Msg, "NaN or Infinity") || strings.Contains(e.Msg, "-Infinity")) {
		e.Msg += "; a number that is not finite is written as null"
	}
	return err
}
