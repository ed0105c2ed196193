package pickle

// argument is how many bytes follow an opcode.
type argument uint8

const (
	none     argument = iota
	fixed1            // 1, 2, 4 and 8 bytes
	fixed2            //
	fixed4            //
	fixed8            //
	counted1          // a length of 1, 4 or 8 bytes and as many bytes
	counted4          //
	counted8          //
	signed4           // the same, and a negative length is an error
	line              // text up to a line feed
	lines2            // two of them
)

// opcode is an instruction of the pickle machine. Names and arguments are those of pickletools.py of Python 3.11, which
// documents protocols 0 to 5.
type opcode struct {
	name string
	arg  argument
}

const (
	opProto, opFrame, opStop, opMark = 0x80, 0x95, '.', '('
)

var opcodes = [256]opcode{
	'(': {"MARK", none}, '.': {"STOP", none}, '0': {"POP", none}, '1': {"POP_MARK", none}, '2': {"DUP", none},
	'F': {"FLOAT", line}, 'I': {"INT", line}, 'J': {"BININT", fixed4}, 'K': {"BININT1", fixed1}, 'L': {"LONG", line},
	'M': {"BININT2", fixed2}, 'N': {"NONE", none}, 'P': {"PERSID", line}, 'Q': {"BINPERSID", none}, 'R': {"REDUCE", none},
	'S': {"STRING", line}, 'T': {"BINSTRING", signed4}, 'U': {"SHORT_BINSTRING", counted1}, 'V': {"UNICODE", line},
	'X': {"BINUNICODE", counted4}, 'a': {"APPEND", none}, 'b': {"BUILD", none}, 'c': {"GLOBAL", lines2}, 'd': {"DICT", none},
	'}': {"EMPTY_DICT", none}, 'e': {"APPENDS", none}, 'g': {"GET", line}, 'h': {"BINGET", fixed1}, 'i': {"INST", lines2},
	'j': {"LONG_BINGET", fixed4}, 'l': {"LIST", none}, ']': {"EMPTY_LIST", none}, 'o': {"OBJ", none}, 'p': {"PUT", line},
	'q': {"BINPUT", fixed1}, 'r': {"LONG_BINPUT", fixed4}, 's': {"SETITEM", none}, 't': {"TUPLE", none}, ')': {"EMPTY_TUPLE", none},
	'u': {"SETITEMS", none}, 'G': {"BINFLOAT", fixed8}, 'B': {"BINBYTES", counted4}, 'C': {"SHORT_BINBYTES", counted1},

	0x80: {"PROTO", fixed1}, 0x81: {"NEWOBJ", none}, 0x82: {"EXT1", fixed1}, 0x83: {"EXT2", fixed2}, 0x84: {"EXT4", fixed4},
	0x85: {"TUPLE1", none}, 0x86: {"TUPLE2", none}, 0x87: {"TUPLE3", none}, 0x88: {"NEWTRUE", none}, 0x89: {"NEWFALSE", none},
	0x8a: {"LONG1", counted1}, 0x8b: {"LONG4", signed4}, 0x8c: {"SHORT_BINUNICODE", counted1}, 0x8d: {"BINUNICODE8", counted8},
	0x8e: {"BINBYTES8", counted8}, 0x8f: {"EMPTY_SET", none}, 0x90: {"ADDITEMS", none}, 0x91: {"FROZENSET", none},
	0x92: {"NEWOBJ_EX", none}, 0x93: {"STACK_GLOBAL", none}, 0x94: {"MEMOIZE", none}, 0x95: {"FRAME", fixed8},
	0x96: {"BYTEARRAY8", counted8}, 0x97: {"NEXT_BUFFER", none}, 0x98: {"READONLY_BUFFER", none},
}
