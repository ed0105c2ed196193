package peft

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// Factors are the factors of one module to write, row-major.
type Factors struct {
	Path      string
	In, Out   int
	Embedding bool
	A, B      []float64 // [r, In], [Out, r]; r is what Config.Scaling says
}

// Contents is an adapter to write.
type Contents struct {
	Config      Config
	Fingerprint string       // of the base, "" for none; it goes into the metadata of the weights, which PEFT does not read
	DType       format.DType // of the factors
	Factors     []Factors
	Saved       []safetensors.Tensor // of modules_to_save, called as in the base: "lm_head.weight"
}

// Encode returns the text of [ConfigFile] and what writes [WeightsFile], so that peft@0.21.2 loads an adapter of both whole:
// PeftModel.from_pretrained(base, path). Everything is checked before the first byte is written: that every module is a target, that the
// factors have the rank of the configuration, and that all values are finite.
func (c Contents) Encode() (config []byte, weights func(w io.Writer) error, err error) {
	return c.encode(ConfigFile)
}

func (c *Contents) encode(file string) ([]byte, func(w io.Writer) error, error) {
	config := c.Config
	if err := config.check(file); err != nil {
		return nil, nil, err
	}
	tensors, err := c.tensors(&config)
	if err != nil {
		return nil, nil, err
	}
	text, err := config.json()
	if err != nil {
		return nil, nil, err
	}
	metadata := map[string]string{"format": "pt"}
	if c.Fingerprint != "" {
		metadata[fingerprintKey] = c.Fingerprint
	}
	return text, func(w io.Writer) error { return safetensors.Write(w, metadata, tensors) }, nil
}

// tensors checks the contents and names them as PEFT does.
func (c *Contents) tensors(config *Config) ([]safetensors.Tensor, error) {
	switch {
	case config.Variant != "" || config.Bias != "none" || config.LoraBias:
		return nil, errors.New("peft: only plain LoRA without biases can be written")
	case len(c.Factors) == 0:
		return nil, errors.New("peft: an adapter without factors")
	case !c.DType.Float():
		return nil, fmt.Errorf("peft: factors of element type %s", c.DType)
	}
	var list []safetensors.Tensor
	seen := map[string]bool{}
	for i := range c.Factors {
		f := &c.Factors[i]
		r, _, _ := config.Scaling(f.Path)
		suffixA, suffixB := ".lora_A.weight", ".lora_B.weight"
		if f.Embedding {
			suffixA, suffixB = ".lora_embedding_A", ".lora_embedding_B"
		}
		switch {
		case seen[f.Path]:
			return nil, fmt.Errorf("peft: module %.64q stands twice", f.Path)
		case f.In < 1 || f.Out < 1:
			return nil, fmt.Errorf("peft: module %.64q has %d inputs and %d outputs", f.Path, f.In, f.Out)
		case !config.Target(f.Path):
			return nil, fmt.Errorf("peft: module %.64q is no target of the configuration", f.Path)
		case len(f.A) != r*f.In:
			return nil, fmt.Errorf("peft: module %.64q: A has %d elements, (%d, %d) needs %d", f.Path, len(f.A), r, f.In, r*f.In)
		case len(f.B) != f.Out*r:
			return nil, fmt.Errorf("peft: module %.64q: B has %d elements, (%d, %d) needs %d", f.Path, len(f.B), f.Out, r, f.Out*r)
		}
		for _, v := range [][]float64{f.A, f.B} {
			for j := range v {
				if math.IsNaN(v[j]) || math.IsInf(v[j], 0) {
					return nil, fmt.Errorf("peft: module %.64q: element %d of a factor is %v", f.Path, j, v[j])
				}
			}
		}
		seen[f.Path] = true
		list = append(list,
			safetensors.Tensor{Name: prefix + f.Path + suffixA, DType: c.DType, Shape: []int{r, f.In}, Data: f.A},
			safetensors.Tensor{Name: prefix + f.Path + suffixB, DType: c.DType, Shape: []int{f.Out, r}, Data: f.B})
	}
	for _, t := range c.Saved {
		if kind, _ := config.classify(prefix + t.Name); kind != Saved {
			return nil, fmt.Errorf("peft: tensor %.64q is in no module of modules_to_save", t.Name)
		}
		t.Name = prefix + t.Name
		list = append(list, t)
	}
	return list, nil
}

// ordered is a JSON object whose keys stay in the order of the list: the first pattern that matches decides.
type ordered []Pattern

func (o ordered) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, p := range o {
		if i > 0 {
			b = append(b, ',')
		}
		key, err := json.Marshal(p.Key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(p.Value)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, key...), ':'), value...)
	}
	return append(b, '}'), nil
}

// json returns the configuration as PEFT writes it: keys in increasing order, None as null. The version of PEFT is left
// out, since no PEFT wrote the file.
func (c *Config) json() ([]byte, error) {
	for _, list := range [][]Pattern{c.RankPattern, c.AlphaPattern} {
		seen := map[string]bool{}
		for _, p := range list {
			if seen[p.Key] {
				return nil, fmt.Errorf("peft: pattern %.64q stands twice", p.Key)
			}
			seen[p.Key] = true
		}
	}
	text := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	value := map[string]any{
		"peft_type":               "LORA",
		"task_type":               text(c.TaskType),
		"base_model_name_or_path": text(c.BaseModel),
		"revision":                text(c.Revision),
		"inference_mode":          true,
		"r":                       c.R,
		"lora_alpha":              c.Alpha,
		"use_rslora":              c.RSLoRA,
		"lora_dropout":            c.Dropout,
		"target_modules":          c.Targets.json(),
		"exclude_modules":         c.Exclude.json(),
		"layers_to_transform":     c.Layers,
		"layers_pattern":          c.LayersPattern,
		"modules_to_save":         c.ModulesToSave,
		"rank_pattern":            ordered(c.RankPattern),
		"alpha_pattern":           ordered(c.AlphaPattern),
		"fan_in_fan_out":          c.FanInFanOut,
		"bias":                    c.Bias,
		"lora_bias":               c.LoraBias,
		"use_dora":                false,
		"init_lora_weights":       true,
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	return []byte(strings.TrimSuffix(b.String(), "\n")), nil
}

func (t Targets) json() any {
	switch {
	case t.Regex != "":
		return t.Regex
	case t.List == nil:
		return nil
	}
	return t.List
}
