package dump

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// WriteFile writes a dump of one file, NAME.safetensors, whole or not at all. Elements are rounded to the Type of their
// tensor, a floating-point type, I32, I64, U8 or Bool; integers must fit theirs. Equal input gives equal bytes.
//
// Scalars that are not finite are written as null. Tensors with Casts are added to Lossy.
func WriteFile(path string, m Meta, tensors ...*Tensor) error {
	m.Lossy = slices.Clone(m.Lossy)
	out := make([]safetensors.Tensor, len(tensors))
	for i, t := range tensors {
		if t.Casts && !slices.Contains(m.Lossy, t.Name) {
			m.Lossy = append(m.Lossy, t.Name)
		}
		out[i] = safetensors.Tensor{Name: t.Name, DType: t.Type, Shape: t.Shape, Data: t.Data}
		if t.Type == format.I32 || t.Type == format.U8 {
			raw, err := encodeIntegers(t)
			if err != nil {
				return fmt.Errorf("writing %s: tensor %.64q: %w", path, t.Name, err)
			}
			out[i].Data, out[i].Raw = nil, raw
		}
	}
	text, err := m.appendJSON(nil)
	if err != nil {
		return fmt.Errorf("writing %s: metadata: %w", path, err)
	}
	return safetensors.WriteFile(path, map[string]string{metadataKey: string(text)}, out)
}

// NewMask returns a mask as a tensor to be written.
func NewMask(name string, rows, cols int, mask []bool) *Tensor {
	t := &Tensor{Name: name, Layout: PerToken, Width: 1, Shape: []int{rows, cols}, Type: format.Bool, Data: make([]float64, len(mask))}
	for i, m := range mask {
		if m {
			t.Data[i] = 1
		}
	}
	return t
}

// encodeIntegers returns the elements of t as its type I32 or U8.
func encodeIntegers(t *Tensor) ([]byte, error) {
	lo, hi := float64(math.MinInt32), float64(math.MaxInt32)
	if t.Type == format.U8 {
		lo, hi = 0, math.MaxUint8
	}
	raw := make([]byte, 0, len(t.Data)*t.Type.Size())
	for i, v := range t.Data {
		if !(v >= lo && v <= hi && v == math.Trunc(v)) {
			return nil, fmt.Errorf("element %d is %v, which %s cannot hold", i, v, t.Type)
		}
		if t.Type == format.U8 {
			raw = append(raw, byte(v))
		} else {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(int32(v)))
		}
	}
	return raw, nil
}

// appendJSON appends the metadata as JSON: keys in the order of dump.md, options and scalars in their own, what was not
// said left out.
func (m *Meta) appendJSON(b []byte) ([]byte, error) {
	b = strconv.AppendInt(append(b, `{"schema":`...), Schema, 10)
	var errs []error
	add := func(said bool, key string, value any) {
		if !said {
			return
		}
		b = append(appendText(append(b, ','), key), ':')
		var err error
		if b, err = appendValue(b, value); err != nil {
			errs = append(errs, fmt.Errorf("key %s: %w", key, err))
		}
	}
	add(m.Framework != "", "framework", m.Framework)
	add(m.Version != "", "version", m.Version)
	add(m.Algorithm != "", "algorithm", m.Algorithm)
	add(m.Profile != "", "profile", m.Profile)
	add(m.Run != "", "run", m.Run)
	add(true, "step", m.Step)
	add(true, "rank", m.Rank)
	add(m.WorldSize > 0, "world_size", m.WorldSize)
	add(true, "micro_batch", m.MicroBatch)
	add(m.MicroBatches > 0, "micro_batches", m.MicroBatches)
	add(true, "align", m.Align.String())
	add(m.ScalarsScope != "", "scalars_scope", m.ScalarsScope)
	if m.TokenLossIncludesKL != nil {
		add(true, "token_loss_includes_kl", *m.TokenLossIncludesKL)
	}
	if m.ScoresShaped != nil {
		add(true, "scores_shaped", *m.ScoresShaped)
	}
	add(m.ComputeDType != "", "compute_dtype", m.ComputeDType)
	if len(m.Lossy) > 0 {
		list := make([]any, len(m.Lossy))
		for i, name := range m.Lossy {
			list[i] = name
		}
		add(true, "lossy", list)
	}
	add(m.DLogpScale != 1 && m.DLogpScale != 0, "dlogp_scale", m.DLogpScale)
	if m.MaskedFill != nil {
		add(true, "masked_fill", *m.MaskedFill)
	}
	b = append(b, `,"options":{`...)
	for i, o := range m.Options {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendText(b, o.Name), ':')
		var err error
		if b, err = appendValue(b, o.Value); err != nil {
			errs = append(errs, fmt.Errorf("option %s: %w", o.Name, err))
		}
	}
	b = append(b, `},"scalars":{`...)
	for i, s := range m.Scalars {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendText(b, s.Name), ':')
		if math.IsNaN(s.Value) || math.IsInf(s.Value, 0) {
			b = append(b, "null"...)
			continue
		}
		b, _ = appendValue(b, s.Value)
	}
	return append(b, "}}"...), errors.Join(errs...)
}

// appendText appends s as a JSON string.
func appendText(b []byte, s string) []byte {
	text, _ := json.Marshal(s) // a string is never refused
	return append(b, text...)
}

// appendValue appends a value of an Option.
func appendValue(b []byte, v any) ([]byte, error) {
	var err error
	switch v := v.(type) {
	case nil:
		b = append(b, "null"...)
	case bool:
		b = strconv.AppendBool(b, v)
	case int:
		b = strconv.AppendInt(b, int64(v), 10)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return b, fmt.Errorf("%v has no JSON form", v)
		}
		if v == math.Trunc(v) && math.Abs(v) < 1e15 {
			return strconv.AppendFloat(b, v, 'f', -1, 64), nil
		}
		b = strconv.AppendFloat(b, v, 'g', -1, 64)
	case string:
		b = appendText(b, v)
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendValue(b, e); err != nil {
				return b, err
			}
		}
		b = append(b, ']')
	case map[string]any:
		b = append(b, '{')
		for i, key := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendValue(append(appendText(b, key), ':'), v[key]); err != nil {
				return b, err
			}
		}
		b = append(b, '}')
	default:
		return b, fmt.Errorf("a value of type %T has no JSON form", v)
	}
	return b, nil
}
