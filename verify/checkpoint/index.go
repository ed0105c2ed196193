package checkpoint

import (
	"maps"
	"path"
	"slices"
	"strings"

	"plumbline/internal/format"
)

const indexFile = "model.safetensors.index.json"

// Index is a model.safetensors.index.json.
type Index struct {
	File      string            // for messages
	Map       map[string]string // tensor to shard
	TotalSize int64             // -1 if it is not there
	Shards    []string          // named by Map, once each, by name
}

// index reads the index of the shards. Names that are no plain file names are refused: joined to the folder they lead
// out of it.
func (f *Folder) index(u *Unit) error {
	if !u.has(indexFile) {
		return nil
	}
	name := path.Join(u.Dir, indexFile)
	text, err := f.text(name, format.MaxIndex)
	if err == nil {
		var x *Index
		if x, err = parseIndex(f.shown(name), text); err == nil {
			u.Index = x
			return nil
		}
	}
	return f.refuse(err)
}

func parseIndex(file string, text []byte) (*Index, error) {
	x := &Index{File: file, Map: map[string]string{}, TotalSize: -1}
	s := format.NewScanner(file, text, 0)
	mapped := false
	err := s.Document(func(key string) error {
		switch key {
		case "metadata":
			if s.Kind() != format.KindObject {
				return s.Skip()
			}
			return s.Object(func(key string) (err error) {
				if key != "total_size" || s.Kind() != format.KindNumber {
					return s.Skip()
				}
				size, err := s.Float() // transformers has written 1.6e9 here
				x.TotalSize = int64(min(max(size, -1), 1<<62))
				return err
			})
		case "weight_map":
			mapped = true
			return s.Object(func(key string) error {
				shard, err := s.String()
				if err != nil {
					return err
				}
				if shard == "" || shard == "." || shard == ".." || strings.ContainsAny(shard, `/\`) {
					return s.Malformed("tensor %.64q is mapped to %.64q: a shard is a plain file name, this one leads out of the folder", key, shard)
				}
				x.Map[key] = shard
				return nil
			})
		}
		return s.Skip()
	})
	if err == nil && !mapped {
		err = format.Malformed(file, "", "key weight_map is missing")
	}
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, shard := range x.Map {
		if !seen[shard] {
			seen[shard] = true
			x.Shards = append(x.Shards, shard)
		}
	}
	slices.Sort(x.Shards)
	return x, nil
}

// agree returns an error if the index and the shards contradict each other: a loader takes the one or the other.
func (f *Folder) agree(u *Unit) error {
	if u.Index == nil {
		return nil
	}
	in := map[string]string{}
	shards := map[string]bool{}
	for _, c := range u.Containers {
		if c.Role != weightsRole {
			continue
		}
		b := path.Base(c.Name)
		shards[b] = true
		for _, t := range c.Tensors {
			if first, ok := in[t.Name]; ok {
				return format.Malformed(f.at(u), "", "tensor %.64q lies in two shards, %s and %s", t.Name, first, b)
			}
			in[t.Name] = b
		}
	}
	for _, n := range slices.Sorted(maps.Keys(u.Index.Map)) {
		if shard := u.Index.Map[n]; shards[shard] && in[n] != shard {
			where := "which does not hold it"
			if in[n] != "" {
				where = "and lies in " + in[n]
			}
			return format.Malformed(u.Index.File, "weight_map", "tensor %.64q is mapped to %s, %s", n, shard, where)
		}
	}
	return nil
}
