// Package peft reads and writes LoRA adapters in the layout of PEFT (https://github.com/huggingface/peft): a folder with
// adapter_config.json and adapter_model.safetensors.
//
// A module whose weight is W [out, in] gets two factors, A [r, in] and B [out, r], and computes
//
//	y = W·x + s·B·(A·x),   s = α/r, or α/√r with rank-stabilised scaling (Kalajdzievski 2023, rsLoRA)
//
// after Hu et al. 2021, "LoRA", section 4.1. The factors of the module m are called base_model.model.m.lora_A.weight and
// base_model.model.m.lora_B.weight. What the configuration means for one module (its rank, α and whether it is a target at
// all) follows peft@0.21.2: tuners/tuners_utils.py check_target_module_exists, utils/other.py get_pattern_key and
// tuners/lora/layer.py update_layer.
//
// PEFT loads leniently: missing and unexpected tensors are a warning at most. Open is as lenient, so that a broken adapter
// can be described; Modules and Fit refuse whatever would leave an adapter half loaded.
package peft

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// Names of the files of an adapter.
const (
	ConfigFile  = "adapter_config.json"
	WeightsFile = "adapter_model.safetensors"
)

// prefix is what PEFT puts before the path of a module: the two wrappers around the base model.
const prefix = "base_model.model."

// fingerprintKey is the key of the metadata of the weights that holds the fingerprint of the base. PEFT reads no metadata.
const fingerprintKey = "base_fingerprint"

// Kind says what a tensor of an adapter is.
type Kind uint8

// The kinds of tensors.
const (
	Unknown    Kind = iota // no part of a LoRA adapter
	A                      // lora_A.weight, [r, in]
	B                      // lora_B.weight, [out, r]
	Bias                   // lora_B.bias, [out]
	EmbeddingA             // lora_embedding_A, [r, vocabulary]
	EmbeddingB             // lora_embedding_B, [hidden, r]
	Magnitude              // lora_magnitude_vector of DoRA, [out]
	Saved                  // a tensor that takes the place of one of the base
)

// suffixes of the keys by kind, without those of Saved.
var suffixes = []struct {
	suffix string
	kind   Kind
}{
	{".lora_A.weight", A},
	{".lora_B.weight", B},
	{".lora_B.bias", Bias},
	{".lora_embedding_A", EmbeddingA},
	{".lora_embedding_B", EmbeddingB},
	{".lora_magnitude_vector", Magnitude},
}

// embeddings are the modules that PEFT saves unasked when their size was changed (utils/constants.py
// EMBEDDING_LAYER_NAMES).
var embeddings = []string{"embed_tokens", "lm_head"}

// Tensor is a tensor of adapter_model.safetensors.
type Tensor struct {
	Key  string
	Kind Kind
	// Module is the path of the module in the base model, as "model.layers.0.self_attn.q_proj". For Saved it is the name
	// of the tensor of the base, as "lm_head.weight"; for Unknown it is empty.
	Module string
	Array  *format.Array
}

// Adapter is an adapter folder whose configuration and list of tensors have been read.
type Adapter struct {
	Path        string // of the folder
	Config      Config
	Fingerprint string   // of the base that the adapter was made for, "" where its writer left none
	Tensors     []Tensor // by key
	Notes       []string // what a reader should know

	weights *safetensors.File
}

// Open reads the configuration and the header of the weights in the folder at path. It refuses what is no LoRA adapter, or
// cannot be read as one; use Modules to have the tensors checked against the configuration. A pickle is never loaded.
func Open(path string) (*Adapter, error) {
	dir, err := format.OpenDir(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	a := &Adapter{Path: path}
	text, err := dir.ReadFile(ConfigFile, format.MaxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, format.Malformed(path, "", "has no %s%s", ConfigFile, elsewhere(dir))
	}
	if err != nil {
		return nil, err
	}
	if a.Config, a.Notes, err = ParseConfig(filepath.Join(path, ConfigFile), text); err != nil {
		return nil, err
	}
	f, err := dir.Open(WeightsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noWeights(dir)
	}
	if err != nil {
		return nil, err
	}
	if a.weights, err = safetensors.Parse(f); err != nil {
		f.Close()
		return nil, err
	}
	err = a.Config.affordable(filepath.Join(path, ConfigFile), a.weights.Names())
	if err != nil {
		a.weights.Close()
		return nil, err
	}
	a.Fingerprint = a.weights.Metadata[fingerprintKey]
	for key, array := range a.weights.Tensors() {
		t := Tensor{Key: key, Array: array}
		t.Kind, t.Module = a.Config.classify(key)
		a.Tensors = append(a.Tensors, t)
	}
	slices.SortFunc(a.Tensors, func(x, y Tensor) int { return strings.Compare(x.Key, y.Key) })
	if dir.Has("pytorch_model.bin") { // TRL's PPO trainer saves its value head here
		a.Notes = append(a.Notes, "pytorch_model.bin is a pickle and was not read")
	}
	return a, nil
}

// Close closes the weights: the arrays can no longer be read.
func (a *Adapter) Close() error { return a.weights.Close() }

// WeightsPath returns the path of the weights, for messages.
func (a *Adapter) WeightsPath() string { return filepath.Join(a.Path, WeightsFile) }

// classify returns what the tensor called key is.
func (c *Config) classify(key string) (Kind, string) {
	path, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return Unknown, ""
	}
	for _, s := range suffixes {
		if module, ok := strings.CutSuffix(path, s.suffix); ok && module != "" {
			return s.kind, module
		}
	}
	if strings.Contains(path, ".lora_") {
		return Unknown, ""
	}
	module, leaf, ok := cutLast(path)
	if !ok {
		return Unknown, ""
	}
	if of, ok := strings.CutSuffix(module, ".base_layer"); ok { // of a targeted embedding, saved beside its factors
		return Saved, of + "." + leaf
	}
	_, name, ok := cutLast(module)
	if !ok {
		name = module
	}
	if slices.Contains(embeddings, name) || c.SavesTensor(path) {
		return Saved, path
	}
	return Unknown, ""
}

func cutLast(path string) (before, after string, ok bool) {
	i := strings.LastIndexByte(path, '.')
	if i < 0 {
		return "", path, false
	}
	return path[:i], path[i+1:], true
}

// elsewhere names the folders of dir that hold an adapter: PEFT saves those not called "default" in a folder of their own.
func elsewhere(dir *format.Dir) string {
	names, err := dir.Entries()
	if err != nil {
		return ""
	}
	var found []string
	for _, n := range names {
		if dir.Has(filepath.Join(n, ConfigFile)) {
			found = append(found, n)
		}
	}
	switch {
	case len(found) > 0:
		return "; there is one in " + strings.Join(found[:min(len(found), 8)], ", ")
	case slices.Contains(names, "config.json"):
		return "; config.json is that of a whole model"
	}
	return ""
}

// noWeights says why a folder without adapter_model.safetensors is refused.
func noWeights(dir *format.Dir) error {
	const pickle = "adapter_model.bin"
	if !dir.Has(pickle) {
		return format.Malformed(dir.Path(), "", "has no %s", WeightsFile)
	}
	from, to := filepath.Join(dir.Path(), pickle), filepath.Join(dir.Path(), WeightsFile)
	return format.Malformed(from, "", "refused: a pickle runs code when it is loaded; convert it where you trust it:\n"+
		"python -c %s", format.ShellQuote(fmt.Sprintf("import torch; from safetensors.torch import save_file; "+
		"save_file({k: v.contiguous() for k, v in torch.load(%q, weights_only=True, map_location='cpu').items()}, %q, {'format': 'pt'})", from, to)))
}
