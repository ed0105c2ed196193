// Package hf reads the folder of a model of Hugging Face: config.json, generation_config.json and the weights, which are
// model.safetensors or the shards that model.safetensors.index.json lists.
//
// Files are opened inside the folder only (format.Dir). Pickles are never loaded; their error says how to convert them. A
// Folder is opened whole or not at all: every shard is there and its header sound, the index and the shards agree on every
// tensor, and no two stored tensors have one name. Elements are read when they are asked for.
package hf

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// Folder is an open model. Names of tensors are those of the state dict of the class ...ForCausalLM of transformers;
// asking for a tensor without the prefix of the base model ("transformer.", "model."), or with that of a wrapper
// ("base_model.model.", "module."), gives the same tensor. The methods that read are safe for concurrent use.
type Folder struct {
	Path       string
	Config     *Config
	Generation *Generation // nil if there is no generation_config.json
	Ignored    []string    // stored tensors that are buffers of old versions: attn.bias, attn.masked_bias, inv_freq
	Notes      []string    // what a reader should know: shards that nothing refers to, a wrong total_size

	dir     *format.Dir
	shards  []shard  // in the order of their names
	weights []weight // in the order of their names
}

// shard is a file of weights.
type shard struct {
	name string
	file *format.File
	*safetensors.File
}

// weight is a tensor of a shard.
type weight struct {
	name   string // in the state dict
	stored string // in the shard
	shard  int32
}

// Open opens the model folder at path.
func Open(path string) (*Folder, error) { return OpenVariant(path, "") }

// OpenVariant opens the weights of a variant: "fp16" for model.fp16.safetensors or model.safetensors.index.fp16.json. It
// is "" for the weights without one.
func OpenVariant(path, variant string) (_ *Folder, err error) {
	dir, err := format.OpenDir(path)
	if err != nil {
		return nil, err
	}
	f := &Folder{Path: path, dir: dir}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if f.Config, err = readConfig(dir); err != nil {
		return nil, err
	}
	if f.Has("generation_config.json") {
		text, err := f.Bytes("generation_config.json", format.MaxConfig)
		if err != nil {
			return nil, err
		}
		if f.Generation, err = ParseGeneration(f.file("generation_config.json"), text); err != nil {
			return nil, err
		}
	}
	if err = f.open(variant); err != nil {
		return nil, err
	}
	if err = f.index(); err != nil {
		return nil, err
	}
	return f, nil
}

// index fills weights from the tensors of the shards.
func (f *Folder) index() error {
	n := 0
	for i := range f.shards {
		n += f.shards[i].Len()
	}
	f.weights = make([]weight, 0, n)
	for i := range f.shards {
		for stored := range f.shards[i].Names() {
			name := f.Config.Canonical(stored)
			if arch.Buffer(f.Config.Type, name) {
				f.Ignored = append(f.Ignored, stored)
				continue
			}
			f.weights = append(f.weights, weight{name, stored, int32(i)})
		}
	}
	slices.Sort(f.Ignored)
	slices.SortFunc(f.weights, func(a, b weight) int { return strings.Compare(a.name, b.name) })
	for i := 1; i < len(f.weights); i++ {
		if a, b := &f.weights[i-1], &f.weights[i]; a.name == b.name {
			return format.Malformed(f.shards[b.shard].Path, fmt.Sprintf("tensor %.128q", b.stored),
				"is the same weight as %.128q in %s", a.stored, f.shards[a.shard].name)
		}
	}
	return nil
}

// Close closes the files.
func (f *Folder) Close() error {
	var errs []error
	for i := range f.shards {
		errs = append(errs, f.shards[i].Close())
	}
	return errors.Join(append(errs, f.dir.Close())...)
}

// Has reports whether the folder holds an entry of that name.
func (f *Folder) Has(name string) bool { return f.dir.Has(name) }

// Bytes returns the content of a file of the folder, of at most limit bytes: tokenizer.json, chat_template.jinja.
func (f *Folder) Bytes(name string, limit int64) ([]byte, error) {
	return f.dir.ReadFile(name, limit)
}

// Names returns the names of the weights in increasing order, without what is in Ignored.
func (f *Folder) Names() []string {
	names := make([]string, len(f.weights))
	for i := range f.weights {
		names[i] = f.weights[i].name
	}
	return names
}

// Shards returns the names of the files of weights in increasing order.
func (f *Folder) Shards() []string {
	names := make([]string, len(f.shards))
	for i := range f.shards {
		names[i] = f.shards[i].name
	}
	return names
}

// Tensor returns the stored weight called name, or false. A tied head that is not stored is not found.
func (f *Folder) Tensor(name string) (*format.Array, bool) {
	w := f.find(name)
	if w == nil {
		return nil, false
	}
	return f.shards[w.shard].Tensor(w.stored)
}

func (f *Folder) find(name string) *weight {
	name = f.Config.Canonical(name)
	i, ok := slices.BinarySearchFunc(f.weights, name, func(w weight, name string) int { return strings.Compare(w.name, name) })
	if !ok {
		return nil
	}
	return &f.weights[i]
}

// Array returns the weight called name, whose elements are read when they are asked for.
//
// With tie_word_embeddings the head that is not stored is the embedding, and the embedding that is not stored the head. Both
// stored and different is refused: transformers before 5 takes the embedding, transformers@5.23.0 both
// (PreTrainedModel.tie_weights).
func (f *Folder) Array(name string) (*format.Array, error) {
	a, err := f.weight(name)
	if err == nil {
		err = f.untied(name)
	}
	return a, err
}

// Read returns the elements of the weight called name, row-major, which must be of the floating-point types F16, BF16, F32
// or F64 and have that shape. NaN and infinities are returned as they are stored. Tied weights are those of Array.
func (f *Folder) Read(name string, shape ...int) ([]float64, error) {
	a, err := f.Array(name)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(a.Shape, shape) {
		return nil, format.Malformed(a.Name, "", "shape %s, want %s", a.ShapeString(), (&format.Array{Shape: shape}).ShapeString())
	}
	if err := f.Numbers(name); err != nil {
		return nil, err
	}
	return a.Float64s()
}

// Numbers returns an error unless the weight called name is stored in a floating-point type.
func (f *Folder) Numbers(name string) error {
	a, err := f.weight(name)
	if err == nil && !a.DType.Float() {
		err = format.Malformed(a.Name, "", "element type %s, want F16, BF16, F32 or F64%s", a.Type, f.quantized(name))
	}
	return err
}

// weight returns the array of a weight, tied weights included.
func (f *Folder) weight(name string) (*format.Array, error) {
	a, stored := f.Tensor(name)
	canonical, embedding := f.Config.Canonical(name), arch.EmbeddingOf(f.Config.Type)
	if embedding == "" || canonical != arch.HeadWeight && canonical != embedding {
		if !stored {
			return nil, f.missing(canonical, "")
		}
		return a, nil
	}
	if !f.Config.Tied {
		if !stored {
			return nil, f.missing(canonical, ", and tie_word_embeddings is false")
		}
		return a, nil
	}
	other := arch.HeadWeight
	if canonical == arch.HeadWeight {
		other = embedding
	}
	b, ok := f.Tensor(other)
	switch {
	case !stored && !ok:
		return nil, f.missing(canonical, fmt.Sprintf(", and so is %s, which it is tied to", other))
	case !stored:
		return b, nil
	}
	return a, nil
}

// untied refuses a head and an embedding that are to be one and are not, if name is one of them.
func (f *Folder) untied(name string) error {
	canonical, embedding := f.Config.Canonical(name), arch.EmbeddingOf(f.Config.Type)
	if !f.Config.Tied || embedding == "" || canonical != arch.HeadWeight && canonical != embedding {
		return nil
	}
	tie, err := f.Tied()
	if err == nil && tie == TiedDiffer {
		err = format.Malformed(f.Path, "tie_word_embeddings", "is true, but %s and %s are both stored and differ: what the head is depends on the version of transformers",
			arch.HeadWeight, embedding)
	}
	return err
}

func (f *Folder) missing(name, why string) error {
	return format.Malformed(f.Path, fmt.Sprintf("tensor %.128q", name), "is missing from the %d of %s%s", len(f.weights), strings.Join(f.few(), ", "), why)
}

// few returns the names of the files of weights, of many only the first and the last.
func (f *Folder) few() []string {
	names := f.Shards()
	if len(names) > 3 {
		return []string{names[0], "…", names[len(names)-1]}
	}
	return names
}

// Fingerprint returns the sha256 of the weights as adapters and manifests name a base, in hexadecimal: for each file, in
// the order of the names, its size as a little-endian uint64, the JSON header, and the first and the last MiB of the
// elements (all of them twice if there is no more).
func (f *Folder) Fingerprint() (string, error) {
	const part = 1 << 20
	sum := sha256.New()
	for i := range f.shards {
		s := &f.shards[i]
		data := 8 + s.Header
		n := min(part, s.Size-data)
		var size [8]byte
		binary.LittleEndian.PutUint64(size[:], uint64(s.Size))
		sum.Write(size[:])
		for _, from := range [][2]int64{{8, s.Header}, {data, n}, {s.Size - n, n}} { // where, and how many bytes
			if _, err := io.Copy(sum, &format.Section{R: s.file, Off: from[0], End: from[0] + from[1]}); err != nil {
				return "", fmt.Errorf("%s: %w", s.Path, err)
			}
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
