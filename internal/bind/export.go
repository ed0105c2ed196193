package bind

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/hf"
	"plumbline/internal/format/peft"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/rng"
	"plumbline/internal/train"
	"plumbline/reference/ad"
	"plumbline/reference/model"
	"plumbline/reference/sampling"
)

// An Export is a model as a folder that transformers loads.
type Export struct {
	Class string // of transformers, as its Auto classes find it
	Note  string // what a user of the folder has to know
	Files map[string][]byte
}

// ExportFolder returns the folder at path as transformers loads it: the masked model of a run, or the text encoder of an ARC agent. What is one
// already, or has no class there, is a *[train.ConfigError] that says so.
func ExportFolder(path string) (*Export, error) {
	if _, err := os.Stat(filepath.Join(path, peft.ConfigFile)); err == nil {
		return nil, &train.ConfigError{Msg: fmt.Sprintf("%s is an adapter, which PEFT loads as it is: PeftModel.from_pretrained(base, %q)", path, path)}
	}
	embedded := path == TinyMasked || path == TinyJudge
	kind := "maskedgpt"
	if !embedded {
		text, err := readSmall(filepath.Join(path, maskedConfig))
		if err != nil {
			return nil, err
		}
		if kind, err = modelType(filepath.Join(path, maskedConfig), text); err != nil {
			return nil, err
		}
	}
	switch kind {
	case "maskedgpt":
		f, err := OpenMasked(path, 0)
		if err != nil {
			return nil, err
		}
		return f.Export()
	case "arcagent":
		return exportEncoder(path)
	}
	return nil, &train.ConfigError{Msg: fmt.Sprintf("%s has model_type %q: if transformers knows it, it loads the folder as it is", path, kind)}
}

func modelType(path string, text []byte) (string, error) {
	o, err := format.ParseObject(path, text)
	if err != nil {
		return "", err
	}
	return o.Text("model_type", ""), o.Err()
}

// Export returns a masked model as a GPT-NeoX of transformers 5 that is not causal. The two compute the same: blocks x + attention(norm(x)),
// then x + mlp(norm(x)), rotary positions over whole heads, exact GELU, ε = 1e-5. Queries, keys and values of a head lie together there,
// and norms and the MLP always have biases, here of 0 where the model has none. A judge is a GPTNeoXForTokenClassification with one label,
// whose weight is A·w and whose bias is B: the sigmoid of its logit at CLS is the verdict. Weights are rounded to float32, the precision
// of masters.
func (f *MaskedFolder) Export() (*Export, error) {
	c := f.Model.Config
	if c.Vocab > maxMaskedFile {
		return nil, &train.ConfigError{Msg: fmt.Sprintf("%s: a vocabulary of %d rows is not exported", f.Path, c.Vocab)}
	}
	judge := c.Mode == model.SequenceScorer
	config := map[string]any{
		"model_type": "gpt_neox", "architectures": []string{"GPTNeoXForCausalLM"}, "is_causal": false, "use_cache": false, "attention_bias": c.Bias,
		"vocab_size": c.Vocab, "hidden_size": c.Hidden, "num_hidden_layers": c.Layers, "num_attention_heads": c.Heads, "intermediate_size": 4 * c.Hidden,
		"hidden_act": "gelu", "layer_norm_eps": 1e-5, "max_position_embeddings": c.MaxPositions, "rotary_pct": 1.0, "rotary_emb_base": 10000,
		"use_parallel_residual": false, "tie_word_embeddings": true, "attention_dropout": 0.0, "hidden_dropout": 0.0, "classifier_dropout": 0.0,
		"bos_token_id": nil, "eos_token_id": nil, "pad_token_id": c.Pad, "mask_token_id": c.Mask, "dtype": "float32",
	}
	e := &Export{Class: "GPTNeoXForCausalLM",
		Note: fmt.Sprintf("bidirectional, which transformers 5 takes from is_causal: the logits at a position that holds %s are those of the character that fills it in; generate() does not apply", maskToken)}
	tables := []string{maskToken, padToken}
	ids := []int{c.Mask, c.Pad}
	if judge {
		config["architectures"], config["tie_word_embeddings"], config["cls_token_id"], config["num_labels"] = []string{"GPTNeoXForTokenClassification"}, false, c.CLS, 1
		e.Class, e.Note = "GPTNeoXForTokenClassification", fmt.Sprintf("a judge: of a text that begins with %s the verdict is sigmoid(logits[:, 0, 0])", clsToken)
		tables, ids = append(tables, clsToken), append(ids, c.CLS)
	}
	var tensors []safetensors.Tensor
	add := func(name string, data []float64, shape ...int) {
		tensors = append(tensors, safetensors.Tensor{Name: name, DType: format.F32, Shape: shape, Data: data})
	}
	layer := func(to, from string, out int) { // norms have one dimension, linear layers two
		w := f.weights[from+".weight"]
		if len(w) == out {
			add(to+".weight", w, out)
		} else {
			add(to+".weight", w, out, len(w)/out)
		}
		b := f.weights[from+".bias"]
		if b == nil {
			b = make([]float64, out)
		}
		add(to+".bias", b, out)
	}
	table := f.weights["transformer.wte.weight"]
	if c.CLSEmbedding {
		table = append([]float64(nil), table...)
		copy(table[c.CLS*c.Hidden:], f.weights["cls_embedding"])
	}
	add("gpt_neox.embed_in.weight", table, c.Vocab, c.Hidden)
	for i := range c.Layers {
		from, to := fmt.Sprintf("transformer.h.%d.", i), fmt.Sprintf("gpt_neox.layers.%d.", i)
		layer(to+"input_layernorm", from+"ln_1", c.Hidden)
		add(to+"attention.query_key_value.weight", byHead(f.weights[from+"attn.c_attn.weight"], c.Heads), 3*c.Hidden, c.Hidden)
		add(to+"attention.dense.weight", f.weights[from+"attn.c_proj.weight"], c.Hidden, c.Hidden)
		if c.Bias {
			add(to+"attention.query_key_value.bias", byHead(f.weights[from+"attn.c_attn.bias"], c.Heads), 3*c.Hidden)
			add(to+"attention.dense.bias", f.weights[from+"attn.c_proj.bias"], c.Hidden)
		}
		layer(to+"post_attention_layernorm", from+"ln_2", c.Hidden)
		layer(to+"mlp.dense_h_to_4h", from+"mlp.c_fc", 4*c.Hidden)
		layer(to+"mlp.dense_4h_to_h", from+"mlp.c_proj", c.Hidden)
	}
	layer("gpt_neox.final_layer_norm", "transformer.ln_f", c.Hidden)
	if judge {
		w, a := make([]float64, c.Hidden), f.weights["sequence_head.A"][0]
		for i, v := range f.weights["sequence_head.base_predictor.weight"] {
			w[i] = a * v
		}
		add("classifier.weight", w, 1, c.Hidden)
		add("classifier.bias", f.weights["sequence_head.B"], 1)
	}
	weights, err := written(tensors)
	if err != nil {
		return nil, err
	}
	tokenizer, special, err := f.tokenizer(tables, ids)
	if err != nil {
		return nil, err
	}
	special["tokenizer_class"], special["model_max_length"] = "PreTrainedTokenizerFast", c.MaxPositions
	e.Files = map[string][]byte{WeightsFile: weights, maskedConfig: indented(config), "tokenizer.json": tokenizer, "tokenizer_config.json": indented(special)}
	return e, nil
}

// The special tokens of an export, as text.
const (
	maskToken = "<|mask|>"
	padToken  = "<|pad|>"
	clsToken  = "<|cls|>"
)

// byHead puts the rows of queries, keys and values, [3, H, D, …], in GPT-NeoX's order, [H, 3, D, …].
func byHead(w []float64, heads int) []float64 {
	block := len(w) / (3 * heads)
	out := make([]float64, 0, len(w))
	for h := range heads {
		for part := range 3 {
			at := (part*heads + h) * block
			out = append(out, w[at:at+block]...)
		}
	}
	return out
}

// tokenizer returns tokenizer.json: byte-pair encoding without a merge, so that every character is a token, and the special tokens.
func (f *MaskedFolder) tokenizer(special []string, ids []int) (text []byte, names map[string]any, err error) {
	vocab := map[string]int{}
	for id := range f.Characters.Len() {
		c, err := f.Characters.Decode([]int{id}, 0)
		if err != nil {
			return nil, nil, err
		}
		vocab[c] = id
	}
	names = map[string]any{}
	var added []map[string]any
	for i, token := range special {
		vocab[token] = ids[i]
		names[strings.Trim(token, "<|>")+"_token"] = token
		added = append(added, map[string]any{"id": ids[i], "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
	}
	return indented(map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil, "pre_tokenizer": nil, "post_processor": nil,
		"decoder": map[string]any{"type": "Fuse"},
		"model": map[string]any{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil, "fuse_unk": false,
			"byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []string{}},
	}), names, nil
}

// exportEncoder returns the text encoder of the ARC agent of a folder as the Qwen2 that it is. An adapter beside it is merged into it.
func exportEncoder(path string) (*Export, error) {
	text, err := readSmall(filepath.Join(path, maskedConfig))
	if err != nil {
		return nil, err
	}
	var whole struct{ Text json.RawMessage }
	if err := json.Unmarshal(text, &whole); err != nil || len(whole.Text) == 0 {
		return nil, format.Malformed(filepath.Join(path, maskedConfig), "text", "no configuration of the text encoder")
	}
	config := map[string]any{}
	if err := json.Unmarshal(whole.Text, &config); err != nil {
		return nil, format.Malformed(filepath.Join(path, maskedConfig), "text", "no configuration of the text encoder: %v", err)
	}
	config["architectures"] = []string{"Qwen2Model"}
	e := &Export{Class: "Qwen2Model", Files: map[string][]byte{maskedConfig: indented(config)},
		Note: "the text encoder alone: the projection to the prompt, the convolutions over grids and the prompt policy are of no class that transformers has, and stay in " + path}
	parsed, err := hf.ParseConfig(filepath.Join(path, maskedConfig), indented(config))
	if err == nil {
		err = parsed.OneOf([]string{"qwen2"})
	}
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(path, arcLoRAFile)); err == nil {
		return nil, &train.ConfigError{Msg: fmt.Sprintf("%s holds an adapter of the encoder in %s, whose scaling is in the run's configuration: only an encoder that is frozen or trained whole is exported", path, arcLoRAFile)}
	}
	file, err := safetensors.Open(filepath.Join(path, WeightsFile))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var tensors []safetensors.Tensor
	for _, t := range parsed.Tensors() {
		inner := strings.TrimPrefix(t.Name, "model.")
		a, ok := file.Tensor(arcText + inner)
		switch {
		case t.Name == "lm_head.weight":
			continue
		case !ok || !slices.Equal(a.Shape, t.Shape):
			return nil, format.Malformed(filepath.Join(path, WeightsFile), arcText+inner, "is missing or has another shape than %s says", maskedConfig)
		}
		tensors = append(tensors, safetensors.Tensor{Name: inner, Array: a})
	}
	if e.Files[WeightsFile], err = written(tensors); err != nil {
		return nil, err
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		if text, err := os.ReadFile(filepath.Join(path, name)); err == nil {
			e.Files[name] = text
		}
	}
	return e, nil
}

func written(tensors []safetensors.Tensor) ([]byte, error) {
	for _, t := range tensors {
		for i, v := range t.Data {
			if math.IsInf(float64(float32(v)), 0) && !math.IsInf(v, 0) {
				return nil, fmt.Errorf("%s: element %d, %g, is beyond float32", t.Name, i, v)
			}
		}
	}
	var b bytes.Buffer
	err := safetensors.Write(&b, map[string]string{"format": "pt"}, tensors)
	return b.Bytes(), err
}

// indented returns JSON for people. It panics on what JSON cannot hold.
func indented(v any) []byte {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		panic(err.Error())
	}
	return append(b, '\n')
}

// EmbeddedBase returns the files of a base that is part of the program, by their names, with the weights as they are before a training
// from seed begins; nil where name is the path of a folder of the user's.
func EmbeddedBase(name string, seed uint64) (map[string][]byte, error) {
	e, ok := embedded[name]
	if !ok {
		return nil, nil
	}
	files := map[string][]byte{}
	list, err := fs.ReadDir(e.files, e.dir)
	for i := 0; err == nil && i < len(list); i++ {
		files[list[i].Name()], err = fs.ReadFile(e.files, e.dir+"/"+list[i].Name())
	}
	if err != nil || !strings.HasSuffix(name, initSuffix) {
		return files, err
	}
	m, _, err := Open(name, seed)
	if err != nil {
		return nil, err
	}
	var tensors []safetensors.Tensor
	for _, t := range m.Base.Config.Tensors() {
		tensors = append(tensors, safetensors.Tensor{Name: t.Name, DType: format.F32, Shape: t.Shape, Data: m.Base.Data(t.Name)})
	}
	files[WeightsFile], err = written(tensors)
	return files, err
}

// Write writes the files of an export into a folder that is empty or not there.
func (e *Export) Write(dir string) error {
	if list, err := os.ReadDir(dir); err == nil && len(list) > 0 {
		return &train.ConfigError{Msg: fmt.Sprintf("%s is not empty: give a folder of its own", dir)}
	}
	if err := format.OwnDir(dir); err != nil {
		return err
	}
	for name, text := range e.Files {
		if err := format.WriteOwn(dir, name, func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
			return err
		}
	}
	return nil
}

// IsMasked reports whether path is a folder of a masked model, or the name of an embedded one.
func IsMasked(path string) bool {
	if name := strings.TrimSuffix(path, initSuffix); name == TinyMasked || name == TinyJudge {
		return true
	}
	text, err := readSmall(filepath.Join(path, maskedConfig))
	if err != nil {
		return false
	}
	kind, err := modelType(maskedConfig, text)
	return err == nil && kind == "maskedgpt"
}

// blank stands for a masked character in a text for [MaskedFolder.Fill].
const blank = '_'

// Fill fills in each _ of a text: one forward pass, and at every mask a character drawn from its logits, independent of the others, or the
// likeliest at temperature 0. Special tokens are not drawn. A judge's answer is its verdict as text.
func (f *MaskedFolder) Fill(text string, o sampling.Options, seed uint64) (string, error) {
	c := f.Model.Config
	var ids []int
	for i, part := range strings.Split(text, string(blank)) {
		if i > 0 {
			ids = append(ids, c.Mask)
		}
		more, err := f.Characters.Encode(part)
		if err != nil {
			return "", err
		}
		ids = append(ids, more...)
	}
	n := f.Model.On(&ad.Tape{}, nil)
	in := model.Input{Batch: 1, Time: len(ids), IDs: ids}
	switch {
	case len(ids) == 0:
		return "", errors.New("has no characters")
	case c.Mode == model.SequenceScorer:
		return fmt.Sprintf("%.6f", n.Score(c.JudgeInput(in)).Data()[0]), nil
	case len(ids) > c.MaxPositions:
		return "", fmt.Errorf("has %d characters, and the model has %d positions (block_size)", len(ids), c.MaxPositions)
	case !slices.Contains(ids, c.Mask):
		return "", fmt.Errorf("has no %c to fill in", blank)
	}
	logits := n.Logits(n.Forward(in).Hidden).Data()
	stream := rng.New(seed, 0)
	for t, id := range ids {
		if id != c.Mask {
			continue
		}
		row := logits[t*c.Vocab:][:f.Characters.Len()]
		if !sampling.Distribution(row, row, o) {
			return "", errors.New("the model gives a logit that is not finite")
		}
		ids[t] = sampling.Draw(row, stream.Uniform(uint64(t)))
	}
	return f.Characters.Decode(ids, blank)
}

// BaseOf returns the name of the base that the adapter in the folder at path was made for.
func BaseOf(path string) (string, error) {
	text, err := readSmall(filepath.Join(path, peft.ConfigFile))
	if err != nil {
		return "", err
	}
	config, _, err := peft.ParseConfig(filepath.Join(path, peft.ConfigFile), text)
	return config.BaseModel, err
}
