package hf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// Limits of an index.
const (
	maxShards  = 4096
	maxTensors = safetensors.MaxTensors
)

func (f *Folder) file(name string) string { return filepath.Join(f.Path, name) }

// open finds and opens the files of weights. Where the folder has both a single file and an index the single file counts,
// as in transformers@5.23.0 (_get_resolved_checkpoint_files).
func (f *Folder) open(variant string) error {
	single, index := "model.safetensors", "model.safetensors.index.json"
	if variant != "" {
		if !plain(variant) {
			return format.Malformed(f.Path, "", "variant %.64q is no part of a file name", variant)
		}
		single, index = "model."+variant+".safetensors", "model.safetensors.index."+variant+".json"
	}
	switch {
	case f.Has(single):
		if f.Has(index) {
			f.Notes = append(f.Notes, fmt.Sprintf("%s is not read: %s is there, too, and is what transformers loads", index, single))
		}
		return f.add(single)
	case f.Has(index):
		return f.sharded(index)
	}
	return f.nothing(single)
}

// add opens one file of weights.
func (f *Folder) add(name string) error {
	file, err := f.dir.Open(name)
	if err != nil {
		return err
	}
	st, err := safetensors.Parse(file)
	if err != nil {
		file.Close()
		return err
	}
	f.shards = append(f.shards, shard{name, file, st})
	f.Notes = append(f.Notes, st.Notes...)
	return nil
}

// mapped is a member of a weight_map.
type mapped struct {
	tensor string
	shard  int32 // index in the list of shards
}

// sharded opens the files that an index lists and demands that both agree.
func (f *Folder) sharded(name string) error {
	text, err := f.Bytes(name, format.MaxIndex)
	if err != nil {
		return err
	}
	path := f.file(name)
	names, tensors, total, err := parseIndex(path, text)
	if err != nil {
		return err
	}
	for _, shard := range names {
		if err := f.add(shard); errors.Is(err, fs.ErrNotExist) { // a link without a target, too: half a download
			return format.Malformed(path, "weight_map", "shard %q is missing from the folder", shard)
		} else if err != nil {
			return err
		}
	}
	if err := f.agree(path, tensors); err != nil {
		return err
	}
	if size := f.bytes(); total >= 0 && total != size {
		f.Notes = append(f.Notes, fmt.Sprintf("%s: metadata.total_size is %d, the tensors of the shards have %d bytes", path, total, size))
	}
	return f.unreferenced()
}

// agree compares the weight_map with what the shards hold.
func (f *Folder) agree(path string, tensors []mapped) error {
	for _, m := range tensors {
		s := &f.shards[m.shard]
		if s.Has(m.tensor) {
			continue
		}
		for i := range f.shards {
			if f.shards[i].Has(m.tensor) {
				return format.Malformed(path, fmt.Sprintf("weight_map, tensor %.128q", m.tensor), "is in %q, not in %q", f.shards[i].name, s.name)
			}
		}
		return format.Malformed(path, fmt.Sprintf("weight_map, tensor %.128q", m.tensor), "is missing from shard %q", s.name)
	}
	for i := range f.shards {
		for name := range f.shards[i].Names() {
			at, ok := slices.BinarySearchFunc(tensors, name, func(m mapped, name string) int { return strings.Compare(m.tensor, name) })
			if !ok {
				return format.Malformed(f.shards[i].Path, fmt.Sprintf("tensor %.128q", name), "is not in the weight_map of %s", filepath.Base(path))
			}
			if other := int(tensors[at].shard); other != i {
				return format.Malformed(f.shards[i].Path, fmt.Sprintf("tensor %.128q", name), "is in %q, too, where the weight_map has it", f.shards[other].name)
			}
		}
	}
	return nil
}

// bytes returns the bytes of all elements.
func (f *Folder) bytes() (n int64) {
	for i := range f.shards {
		n += f.shards[i].Size - 8 - f.shards[i].Header
	}
	return n
}

var shardName = regexp.MustCompile(`^model.*-[0-9]+-of-[0-9]+.*\.safetensors$`)

// unreferenced notes files that look like shards and are in no weight_map: the rest of another save.
func (f *Folder) unreferenced() error {
	entries, err := f.dir.Entries()
	if err != nil {
		return err
	}
	known := f.Shards()
	for _, e := range entries {
		if _, listed := slices.BinarySearch(known, e); !listed && shardName.MatchString(e) {
			f.Notes = append(f.Notes, fmt.Sprintf("%s is not in the weight_map and is not read", f.file(e)))
		}
	}
	return nil
}

// parseIndex reads a model.safetensors.index.json: {"metadata": {"total_size": n}, "weight_map": {tensor: file}}. names
// are the files in increasing order and tensors the map in increasing order of the tensors; total is -1 if it is not said.
func parseIndex(path string, text []byte) (names []string, tensors []mapped, total int64, err error) {
	s := format.NewScanner(path, text, 0)
	total = -1
	ids := map[string]int32{}
	// A member has four quotes; a document has no fewer.
	tensors = make([]mapped, 0, min(bytes.Count(text, []byte{'"'})/4, maxTensors))
	seen := false
	err = s.Document(func(key string) error {
		switch {
		case key == "weight_map":
			seen = true
			return s.Object(func(tensor string) error {
				shard, err := s.String()
				switch {
				case err != nil:
					return err
				case len(tensors) == maxTensors:
					return s.Malformed("more than %d tensors", maxTensors)
				case pickled(shard):
					return s.Malformed("tensor %.128q: shard %.128q is a pickle and is never loaded", tensor, shard)
				case !plain(shard) || !strings.HasSuffix(shard, ".safetensors"):
					return s.Malformed("tensor %.128q: shard %.128q is not the name of a safetensors file in the folder", tensor, shard)
				}
				id, ok := ids[shard]
				if !ok {
					if len(names) == maxShards {
						return s.Malformed("more than %d shards", maxShards)
					}
					id = int32(len(names))
					ids[shard] = id
					names = append(names, shard)
				}
				tensors = append(tensors, mapped{tensor, id})
				return nil
			})
		case key == "metadata" && s.Kind() == format.KindObject:
			return s.Object(func(key string) (err error) {
				// The writers of Megatron and of old transformers put a float there.
				if key != "total_size" || s.Kind() != format.KindNumber {
					return s.Skip()
				}
				var v float64
				if v, err = s.Float(); err == nil && v >= 0 && v < 1<<53 {
					total = int64(v)
				}
				return err
			})
		}
		return s.Skip()
	})
	if err == nil && !seen {
		err = format.Malformed(path, "weight_map", "is missing")
	}
	if err == nil && len(tensors) == 0 {
		err = format.Malformed(path, "weight_map", "is empty")
	}
	if err != nil {
		return nil, nil, 0, err
	}
	order := slices.Sorted(slices.Values(names))
	for i := range tensors {
		at, _ := slices.BinarySearch(order, names[tensors[i].shard])
		tensors[i].shard = int32(at)
	}
	slices.SortFunc(tensors, func(a, b mapped) int { return strings.Compare(a.tensor, b.tensor) })
	return order, tensors, total, nil
}

// plain reports whether name is a file name and no path, on any system.
func plain(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= 255 && !strings.ContainsAny(name, "/\\:\x00") && filepath.IsLocal(name)
}
