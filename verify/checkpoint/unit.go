package checkpoint

import (
	"path"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/format/hf"
)

// Kind says what a unit holds.
type Kind int

// The kinds of units.
const (
	State   Kind = iota // of a trainer alone: optimiser, shards of a framework; or nothing known
	Adapter             // of PEFT
	Whole               // a whole model
	Config              // config.json without weights
)

func (k Kind) String() string {
	return [...]string{"trainer state", "PEFT adapter", "whole model", "configuration without weights"}[k]
}

// role says what a file of tensors is for.
type role int

// The roles of files of tensors.
const (
	weightsRole   role = iota // of the adapter or the model
	headRole                  // beside them
	optimizerRole             // moments
	otherRole                 // weights that are not those of the unit: another format's copy
)

// Tensor is a tensor of a unit.
type Tensor struct {
	Name  string
	File  string // inside the tree
	Role  role
	Array *format.Array
	stats *stats // what the pass over the elements found; nil before it
}

// bits are the sizes of the element types that the safetensors format has and that are not decoded.
var bits = map[string]int64{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64}

// bytes returns the size of the elements in the file.
func (t *Tensor) bytes() int64 {
	if t.Array.DType == format.Unknown {
		return int64(t.Array.Len()) * bits[t.Array.Type] / 8
	}
	return t.Array.Bytes()
}

// Container is a .safetensors file.
type Container struct {
	Name     string // inside the tree
	Role     role
	Size     int64
	Header   int64 // bytes before the elements
	Metadata map[string]string
	Tensors  []*Tensor
}

// Unit is one directory of a tree that holds weights, a configuration or the state of a trainer.
type Unit struct {
	Dir        string // inside the tree, "." for the tree itself
	Kind       Kind
	Entries    map[string]Entry // of Dir alone, by base name
	Containers []*Container
	Index      *Index      // model.safetensors.index.json
	Lora       *Lora       // adapter_config.json
	Config     *hf.Config  // config.json
	Model      *arch.Model // of Config, nil if its type is not known
	State      *format.Object
	Meta       *format.Object // lora_train_meta.json of verl, in the folder above an adapter
	Manifest   *Manifest
	Tokenizer  *Tokenizer
	Pickles    []*Pickle

	pairs []*pair   // of an adapter
	rest  []*Tensor // of an adapter: what is not LoRA's
}

// others takes copies in another form out of the weights: what the index does not name, and what lies beside an adapter.
func (u *Unit) others() {
	adapter := u.has("adapter_model.safetensors")
	for _, c := range u.Containers {
		b := path.Base(c.Name)
		switch {
		case c.Role != weightsRole:
			continue
		case adapter:
			if b == "adapter_model.safetensors" {
				continue
			}
		case u.Index != nil:
			if slices.Contains(u.Index.Shards, b) {
				continue
			}
		case !u.has("model.safetensors") || b == "model.safetensors":
			continue
		}
		c.Role = otherRole
		for _, t := range c.Tensors {
			t.Role = otherRole
		}
	}
}

func (u *Unit) has(base string) bool { _, ok := u.Entries[base]; return ok }

// hasLike reports whether an entry begins with one of the prefixes.
func (u *Unit) hasLike(prefixes ...string) bool {
	for base := range u.Entries {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(base, p) }) {
			return true
		}
	}
	return false
}

// tensors returns the tensors of that role in the order of the files.
func (u *Unit) tensors(of role) []*Tensor {
	var list []*Tensor
	for _, c := range u.Containers {
		for _, t := range c.Tensors {
			if t.Role == of {
				list = append(list, t)
			}
		}
	}
	return list
}

// size returns the bytes of the files of weights.
func (u *Unit) size() (n int64) {
	for _, c := range u.Containers {
		if c.Role == weightsRole {
			n += c.Size
		}
	}
	return n
}
