package checkpoint

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// member is a key and a value of a pickled dict: an int, a string, a float tensor's shape, or members.
type member struct {
	key any
	val any
}

// torchFile writes what torch.save writes: a zip archive with a pickle of dicts and the storages of its float32 tensors.
func torchFile(dict []member) []byte {
	p := &pickler{}
	p.text.WriteString("\x80\x02")
	p.dict(dict)
	p.text.WriteByte('.')
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	add := func(name string, data []byte) {
		f, err := w.CreateRaw(&zip.FileHeader{Name: "archive/" + name, Method: zip.Store, CRC32: crc32.ChecksumIEEE(data), CompressedSize64: uint64(len(data)), UncompressedSize64: uint64(len(data))})
		if err == nil {
			_, err = f.Write(data)
		}
		if err != nil {
			panic("checkpoint: " + err.Error()) // memory
		}
	}
	add("data.pkl", p.text.Bytes())
	add("byteorder", []byte("little"))
	for i, n := range p.storages {
		add(fmt.Sprintf("data/%d", i), make([]byte, 4*n))
	}
	add("version", []byte("3\n"))
	if err := w.Close(); err != nil {
		panic("checkpoint: " + err.Error())
	}
	return out.Bytes()
}

// barePickle writes a pickle of dicts without tensors.
func barePickle(dict []member) []byte {
	p := &pickler{}
	p.text.WriteString("\x80\x02")
	p.dict(dict)
	p.text.WriteByte('.')
	return p.text.Bytes()
}

type pickler struct {
	text     bytes.Buffer
	storages []int
}

func (p *pickler) str(s string) {
	p.text.WriteByte('X')
	p.text.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(s))))
	p.text.WriteString(s)
}

func (p *pickler) int(n int) {
	p.text.WriteByte('J')
	p.text.Write(binary.LittleEndian.AppendUint32(nil, uint32(int32(n))))
}

func (p *pickler) global(module, name string) { fmt.Fprintf(&p.text, "c%s\n%s\n", module, name) }

func (p *pickler) dict(list []member) {
	p.text.WriteString("}(")
	for _, m := range list {
		p.value(m.key)
		p.value(m.val)
	}
	p.text.WriteByte('u')
}

func (p *pickler) value(v any) {
	switch v := v.(type) {
	case int:
		p.int(v)
	case string:
		p.str(v)
	case []int:
		p.tensor(v)
	case []member:
		p.dict(v)
	default:
		panic("checkpoint: pickler: unknown type")
	}
}

// tensor is torch._utils._rebuild_tensor_v2 of a contiguous float32 tensor of that shape.
func (p *pickler) tensor(shape []int) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	p.global("torch._utils", "_rebuild_tensor_v2")
	p.text.WriteString("((")
	p.str("storage")
	p.global("torch", "FloatStorage")
	p.str(fmt.Sprint(len(p.storages)))
	p.str("cpu")
	p.int(n)
	p.text.WriteString("tQ")
	p.storages = append(p.storages, n)
	p.int(0)
	p.text.WriteByte('(')
	for _, d := range shape {
		p.int(d)
	}
	p.text.WriteString("t(")
	stride := n
	for _, d := range shape {
		stride /= max(d, 1)
		p.int(stride)
	}
	p.text.WriteString("t\x89")
	p.global("collections", "OrderedDict")
	p.text.WriteString(")RtR")
}

// adamState is the state_dict of AdamW for parameters of those shapes.
func adamState(shapes [][]int) []byte {
	var state []member
	for i, s := range shapes {
		state = append(state, member{i, []member{{"step", 3}, {"exp_avg", s}, {"exp_avg_sq", s}}})
	}
	return torchFile([]member{{"state", state}, {"param_groups", []member{{"lr", 1}}}})
}
