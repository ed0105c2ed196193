package checkpoint

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"plumbline/internal/format"
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
	for i, s := range p.storages {
		data := make([]byte, 0, 4*s.size())
		for range s.size() {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(s.value))
		}
		add(fmt.Sprintf("data/%d", i), data)
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
	storages []filled
}

// filled is a float32 tensor of one value.
type filled struct {
	shape []int
	value float32
}

func (f filled) size() int { return format.Elements(f.shape) }

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
	case float64:
		p.text.WriteByte('G')
		p.text.Write(binary.BigEndian.AppendUint64(nil, math.Float64bits(v)))
	case string:
		p.str(v)
	case []int:
		p.tensor(filled{v, 0})
	case filled:
		p.tensor(v)
	case []member:
		p.dict(v)
	default:
		panic("checkpoint: pickler: unknown type")
	}
}

// tensor is torch._utils._rebuild_tensor_v2 of a contiguous float32 tensor of that shape.
func (p *pickler) tensor(t filled) {
	shape, n := t.shape, t.size()
	p.global("torch._utils", "_rebuild_tensor_v2")
	p.text.WriteString("((")
	p.str("storage")
	p.global("torch", "FloatStorage")
	p.str(fmt.Sprint(len(p.storages)))
	p.str("cpu")
	p.int(n)
	p.text.WriteString("tQ")
	p.storages = append(p.storages, t)
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

// adamState is the state_dict of AdamW after that many steps for parameters of those shapes.
func adamState(step int, shapes [][]int) []byte {
	var state []member
	for i, s := range shapes {
		var at any = step
		if i%2 == 0 { // a number in torch before 1.12, then a tensor
			at = filled{nil, float32(step)}
		}
		state = append(state, member{i, []member{{"step", at}, {"exp_avg", filled{s, -0.25}}, {"exp_avg_sq", filled{s, 0.0625}}}})
	}
	return torchFile([]member{{"state", state}, {"param_groups", []member{{"lr", 1}}}})
}
