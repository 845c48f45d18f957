/* Written by tests/golden/make_unicode.py: do not edit. internal.h says what it is.
 * The reference: `tokenizers` 0.23.3. The base: PCRE2 of Unicode 14. */
#include "tokenizer/internal.h"

#include <stddef.h>

/* clang-format off */
const mx_property mx_properties[] = {
    {"Digits",
     "\\p{N}\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11de0}-\\x{11de9}\\x{11f50}-"
     "\\x{11f59}\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{16ff4}-\\x{16ff6}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-"
     "\\x{1d2d3}\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"},
    {"Punctuation",
     "\\x{21}-\\x{2f}\\x{3a}-\\x{40}\\x{5b}-\\x{60}\\x{7b}-\\x{7e}\\x{a1}\\x{a7}\\x{ab}\\x{b6}-\\x{b7}\\x{bb}\\x{bf}"
     "\\x{37e}\\x{387}\\x{55a}-\\x{55f}\\x{589}-\\x{58a}\\x{5be}\\x{5c0}\\x{5c3}\\x{5c6}\\x{5f3}-\\x{5f4}\\x{609}-"
     "\\x{60a}\\x{60c}-\\x{60d}\\x{61b}\\x{61e}-\\x{61f}\\x{66a}-\\x{66d}\\x{6d4}\\x{700}-\\x{70d}\\x{7f7}-\\x{7f9}"
     "\\x{830}-\\x{83e}\\x{85e}\\x{964}-\\x{965}\\x{970}\\x{af0}\\x{df4}\\x{e4f}\\x{e5a}-\\x{e5b}\\x{f04}-\\x{f12}"
     "\\x{f14}\\x{f3a}-\\x{f3d}\\x{f85}\\x{fd0}-\\x{fd4}\\x{fd9}-\\x{fda}\\x{104a}-\\x{104f}\\x{10fb}\\x{1360}-"
     "\\x{1368}\\x{1400}\\x{166d}-\\x{166e}\\x{169b}-\\x{169c}\\x{16eb}-\\x{16ed}\\x{1735}-\\x{1736}\\x{17d4}-"
     "\\x{17d6}\\x{17d8}-\\x{17da}\\x{1800}-\\x{180a}\\x{1944}-\\x{1945}\\x{1a1e}-\\x{1a1f}\\x{1aa0}-\\x{1aa6}"
     "\\x{1aa8}-\\x{1aad}\\x{1b5a}-\\x{1b60}\\x{1bfc}-\\x{1bff}\\x{1c3b}-\\x{1c3f}\\x{1c7e}-\\x{1c7f}\\x{1cc0}-"
     "\\x{1cc7}\\x{1cd3}\\x{2010}-\\x{2027}\\x{2030}-\\x{2043}\\x{2045}-\\x{2051}\\x{2053}-\\x{205e}\\x{207d}-"
     "\\x{207e}\\x{208d}-\\x{208e}\\x{2308}-\\x{230b}\\x{2329}-\\x{232a}\\x{2768}-\\x{2775}\\x{27c5}-\\x{27c6}"
     "\\x{27e6}-\\x{27ef}\\x{2983}-\\x{2998}\\x{29d8}-\\x{29db}\\x{29fc}-\\x{29fd}\\x{2cf9}-\\x{2cfc}\\x{2cfe}-"
     "\\x{2cff}\\x{2d70}\\x{2e00}-\\x{2e2e}\\x{2e30}-\\x{2e42}\\x{3001}-\\x{3003}\\x{3008}-\\x{3011}\\x{3014}-"
     "\\x{301f}\\x{3030}\\x{303d}\\x{30a0}\\x{30fb}\\x{a4fe}-\\x{a4ff}\\x{a60d}-\\x{a60f}\\x{a673}\\x{a67e}"
     "\\x{a6f2}-\\x{a6f7}\\x{a874}-\\x{a877}\\x{a8ce}-\\x{a8cf}\\x{a8f8}-\\x{a8fa}\\x{a8fc}\\x{a92e}-\\x{a92f}"
     "\\x{a95f}\\x{a9c1}-\\x{a9cd}\\x{a9de}-\\x{a9df}\\x{aa5c}-\\x{aa5f}\\x{aade}-\\x{aadf}\\x{aaf0}-\\x{aaf1}"
     "\\x{abeb}\\x{fd3e}-\\x{fd3f}\\x{fe10}-\\x{fe19}\\x{fe30}-\\x{fe52}\\x{fe54}-\\x{fe61}\\x{fe63}\\x{fe68}"
     "\\x{fe6a}-\\x{fe6b}\\x{ff01}-\\x{ff03}\\x{ff05}-\\x{ff0a}\\x{ff0c}-\\x{ff0f}\\x{ff1a}-\\x{ff1b}\\x{ff1f}-"
     "\\x{ff20}\\x{ff3b}-\\x{ff3d}\\x{ff3f}\\x{ff5b}\\x{ff5d}\\x{ff5f}-\\x{ff65}\\x{10100}-\\x{10102}\\x{1039f}"
     "\\x{103d0}\\x{1056f}\\x{10857}\\x{1091f}\\x{1093f}\\x{10a50}-\\x{10a58}\\x{10a7f}\\x{10af0}-\\x{10af6}"
     "\\x{10b39}-\\x{10b3f}\\x{10b99}-\\x{10b9c}\\x{11047}-\\x{1104d}\\x{110bb}-\\x{110bc}\\x{110be}-\\x{110c1}"
     "\\x{11140}-\\x{11143}\\x{11174}-\\x{11175}\\x{111c5}-\\x{111c9}\\x{111cd}\\x{111db}\\x{111dd}-\\x{111df}"
     "\\x{11238}-\\x{1123d}\\x{112a9}\\x{114c6}\\x{115c1}-\\x{115d7}\\x{11641}-\\x{11643}\\x{1173c}-\\x{1173e}"
     "\\x{12470}-\\x{12474}\\x{16a6e}-\\x{16a6f}\\x{16af5}\\x{16b37}-\\x{16b3b}\\x{16b44}\\x{1bc9f}\\x{1da87}-"
     "\\x{1da8b}"},
    {"[\\w]",
     "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{897}\\x{cf3}\\x{ece}\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-"
     "\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d40}-\\x{10d65}\\x{10d69}-\\x{10d6d}\\x{10d6f}-\\x{10d85}\\x{10ec2}-"
     "\\x{10ec4}\\x{10efc}-\\x{10eff}\\x{1123f}-\\x{11241}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-"
     "\\x{113b5}\\x{113b7}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113d3}\\x{113e1}-"
     "\\x{113e2}\\x{116d0}-\\x{116e3}\\x{11bc0}-\\x{11be0}\\x{11bf0}-\\x{11bf9}\\x{11f00}-\\x{11f10}\\x{11f12}-"
     "\\x{11f3a}\\x{11f3e}-\\x{11f42}\\x{11f50}-\\x{11f5a}\\x{1342f}\\x{13440}-\\x{13455}\\x{13460}-\\x{143fa}"
     "\\x{16100}-\\x{16139}\\x{16d40}-\\x{16d6c}\\x{16d70}-\\x{16d79}\\x{18cff}\\x{1b132}\\x{1b155}\\x{1ccf0}-"
     "\\x{1ccf9}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e08f}\\x{1e4d0}-\\x{1e4f9}\\x{1e5d0}-\\x{1e5fa}"
     "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"\\w",
     "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}-\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{897}\\x{cf3}\\x{ece}\\x{1c89}-"
     "\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d40}-\\x{10d65}\\x{10d69}-\\x{10d6d}"
     "\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{10efc}-\\x{10eff}\\x{1123f}-\\x{11241}\\x{11380}-\\x{11389}"
     "\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}"
     "\\x{113cc}-\\x{113d3}\\x{113e1}-\\x{113e2}\\x{116d0}-\\x{116e3}\\x{11bc0}-\\x{11be0}\\x{11bf0}-\\x{11bf9}"
     "\\x{11f00}-\\x{11f10}\\x{11f12}-\\x{11f3a}\\x{11f3e}-\\x{11f42}\\x{11f50}-\\x{11f5a}\\x{1342f}\\x{13440}-"
     "\\x{13455}\\x{13460}-\\x{143fa}\\x{16100}-\\x{16139}\\x{16d40}-\\x{16d6c}\\x{16d70}-\\x{16d79}\\x{18cff}"
     "\\x{1b132}\\x{1b155}\\x{1ccf0}-\\x{1ccf9}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e08f}\\x{1e4d0}-"
     "\\x{1e4f9}\\x{1e5d0}-\\x{1e5fa}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"alpha",
     "\\p{Alphabetic}\\x{363}-\\x{36f}\\x{897}\\x{c04}\\x{cf3}\\x{f82}-\\x{f83}\\x{1c89}-\\x{1c8a}\\x{1dd3}-"
     "\\x{1de6}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d65}\\x{10d69}\\x{10d6f}-"
     "\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{10efc}\\x{11080}-\\x{11081}\\x{1123f}-\\x{11241}\\x{11380}-\\x{11389}"
     "\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}"
     "\\x{113cc}-\\x{113cd}\\x{113d1}\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f00}-\\x{11f10}\\x{11f12}-\\x{11f3a}"
     "\\x{11f3e}-\\x{11f40}\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1612e}\\x{16d40}-"
     "\\x{16d6c}\\x{18cff}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e08f}\\x{1e4d0}-"
     "\\x{1e4eb}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"alphabetic", "=alpha"},
    {"any but other",
     "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Z}\\x{897}\\x{cf3}\\x{ece}\\x{1b4e}-\\x{1b4f}\\x{1b7f}\\x{1c89}-\\x{1c8a}"
     "\\x{2427}-\\x{2429}\\x{2ffc}-\\x{2fff}\\x{31e4}-\\x{31e5}\\x{31ef}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}"
     "\\x{105c0}-\\x{105f3}\\x{10d40}-\\x{10d65}\\x{10d69}-\\x{10d85}\\x{10d8e}-\\x{10d8f}\\x{10ec2}-\\x{10ec4}"
     "\\x{10efc}-\\x{10eff}\\x{1123f}-\\x{11241}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}"
     "\\x{113b7}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113d5}\\x{113d7}-\\x{113d8}"
     "\\x{113e1}-\\x{113e2}\\x{116d0}-\\x{116e3}\\x{11b00}-\\x{11b09}\\x{11bc0}-\\x{11be1}\\x{11bf0}-\\x{11bf9}"
     "\\x{11f00}-\\x{11f10}\\x{11f12}-\\x{11f3a}\\x{11f3e}-\\x{11f5a}\\x{1342f}\\x{13440}-\\x{13455}\\x{13460}-"
     "\\x{143fa}\\x{16100}-\\x{16139}\\x{16d40}-\\x{16d79}\\x{18cff}\\x{1b132}\\x{1b155}\\x{1cc00}-\\x{1ccf9}"
     "\\x{1cd00}-\\x{1ceb3}\\x{1d2c0}-\\x{1d2d3}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e08f}\\x{1e4d0}-"
     "\\x{1e4f9}\\x{1e5d0}-\\x{1e5fa}\\x{1e5ff}\\x{1f6dc}\\x{1f774}-\\x{1f776}\\x{1f77b}-\\x{1f77f}\\x{1f7d9}"
     "\\x{1f8b2}-\\x{1f8bb}\\x{1f8c0}-\\x{1f8c1}\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}\\x{1fa8f}\\x{1faad}-"
     "\\x{1faaf}\\x{1fabb}-\\x{1fabf}\\x{1fac6}\\x{1face}-\\x{1facf}\\x{1fada}-\\x{1fadc}\\x{1fadf}\\x{1fae8}-"
     "\\x{1fae9}\\x{1faf7}-\\x{1faf8}\\x{1fbcb}-\\x{1fbef}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"arab",
     "\\p{sc:Arabic}\\x{897}\\x{10ec2}-\\x{10ec4}\\x{10efc}-\\x{10eff}"},
    {"arabic", "=arab"},
    {"armenian",
     "\\p{sc:Armenian}"},
    {"armn", "=armenian"},
    {"assigned",
     "\\P{Cn}\\x{897}\\x{cf3}\\x{ece}\\x{1b4e}-\\x{1b4f}\\x{1b7f}\\x{1c89}-\\x{1c8a}\\x{2427}-\\x{2429}\\x{2ffc}-"
     "\\x{2fff}\\x{31e4}-\\x{31e5}\\x{31ef}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d40}-"
     "\\x{10d65}\\x{10d69}-\\x{10d85}\\x{10d8e}-\\x{10d8f}\\x{10ec2}-\\x{10ec4}\\x{10efc}-\\x{10eff}\\x{1123f}-"
     "\\x{11241}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}-\\x{113c0}\\x{113c2}"
     "\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113d5}\\x{113d7}-\\x{113d8}\\x{113e1}-\\x{113e2}\\x{116d0}-"
     "\\x{116e3}\\x{11b00}-\\x{11b09}\\x{11bc0}-\\x{11be1}\\x{11bf0}-\\x{11bf9}\\x{11f00}-\\x{11f10}\\x{11f12}-"
     "\\x{11f3a}\\x{11f3e}-\\x{11f5a}\\x{1342f}\\x{13439}-\\x{13455}\\x{13460}-\\x{143fa}\\x{16100}-\\x{16139}"
     "\\x{16d40}-\\x{16d79}\\x{18cff}\\x{1b132}\\x{1b155}\\x{1cc00}-\\x{1ccf9}\\x{1cd00}-\\x{1ceb3}\\x{1d2c0}-"
     "\\x{1d2d3}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e08f}\\x{1e4d0}-\\x{1e4f9}\\x{1e5d0}-\\x{1e5fa}"
     "\\x{1e5ff}\\x{1f6dc}\\x{1f774}-\\x{1f776}\\x{1f77b}-\\x{1f77f}\\x{1f7d9}\\x{1f8b2}-\\x{1f8bb}\\x{1f8c0}-"
     "\\x{1f8c1}\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}\\x{1fa8f}\\x{1faad}-\\x{1faaf}\\x{1fabb}-\\x{1fabf}"
     "\\x{1fac6}\\x{1face}-\\x{1facf}\\x{1fada}-\\x{1fadc}\\x{1fadf}\\x{1fae8}-\\x{1fae9}\\x{1faf7}-\\x{1faf8}"
     "\\x{1fbcb}-\\x{1fbef}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"beng",
     "\\p{sc:Bengali}"},
    {"bengali", "=beng"},
    {"bopo",
     "\\p{sc:Bopomofo}"},
    {"bopomofo", "=bopo"},
    {"cc",
     "\\p{Cc}"},
    {"cf",
     "\\p{Cf}\\x{13439}-\\x{1343f}"},
    {"closepunctuation",
     "\\p{Pe}"},
    {"co",
     "\\p{Co}"},
    {"common",
     "\\p{sc:Common}\\x{2427}-\\x{2429}\\x{2ffc}-\\x{2fff}\\x{31e4}-\\x{31e5}\\x{31ef}\\x{1cc00}-\\x{1ccf9}"
     "\\x{1cd00}-\\x{1ceb3}\\x{1d2c0}-\\x{1d2d3}\\x{1f6dc}\\x{1f774}-\\x{1f776}\\x{1f77b}-\\x{1f77f}\\x{1f7d9}"
     "\\x{1f8b2}-\\x{1f8bb}\\x{1f8c0}-\\x{1f8c1}\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}\\x{1fa8f}\\x{1faad}-"
     "\\x{1faaf}\\x{1fabb}-\\x{1fabf}\\x{1fac6}\\x{1face}-\\x{1facf}\\x{1fada}-\\x{1fadc}\\x{1fadf}\\x{1fae8}-"
     "\\x{1fae9}\\x{1faf7}-\\x{1faf8}\\x{1fbcb}-\\x{1fbef}"},
    {"connectorpunctuation",
     "\\p{Pc}"},
    {"control", "=cc"},
    {"currencysymbol",
     "\\p{Sc}"},
    {"cyrillic",
     "\\p{sc:Cyrillic}\\x{1c89}-\\x{1c8a}\\x{1e030}-\\x{1e06d}\\x{1e08f}"},
    {"cyrl", "=cyrillic"},
    {"dashpunctuation",
     "\\p{Pd}\\x{10d6e}"},
    {"decimalnumber",
     "\\p{Nd}\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}\\x{16130}-"
     "\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"},
    {"deva",
     "\\p{sc:Devanagari}\\x{11b00}-\\x{11b09}"},
    {"devanagari", "=deva"},
    {"enclosingmark",
     "\\p{Me}"},
    {"ethi",
     "\\p{sc:Ethiopic}"},
    {"ethiopic", "=ethi"},
    {"finalpunctuation",
     "\\p{Pf}"},
    {"format", "=cf"},
    {"geor",
     "\\p{sc:Georgian}"},
    {"georgian", "=geor"},
    {"greek",
     "\\p{sc:Greek}"},
    {"grek", "=greek"},
    {"gujarati",
     "\\p{sc:Gujarati}"},
    {"gujr", "=gujarati"},
    {"gurmukhi",
     "\\p{sc:Gurmukhi}"},
    {"guru", "=gurmukhi"},
    {"han",
     "\\p{sc:Han}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"hang",
     "\\p{sc:Hangul}"},
    {"hangul", "=hang"},
    {"hani", "=han"},
    {"hebr",
     "\\p{sc:Hebrew}"},
    {"hebrew", "=hebr"},
    {"hira",
     "\\p{sc:Hiragana}\\x{1b132}"},
    {"hiragana", "=hira"},
    {"ideographic",
     "\\p{Ideographic}\\x{18cff}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"initialpunctuation",
     "\\p{Pi}"},
    {"kana",
     "\\p{sc:Katakana}\\x{1b155}"},
    {"kannada",
     "\\p{sc:Kannada}\\x{cf3}"},
    {"katakana", "=kana"},
    {"khmer",
     "\\p{sc:Khmer}"},
    {"khmr", "=khmer"},
    {"knda", "=kannada"},
    {"l",
     "\\p{L}\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d65}"
     "\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}"
     "\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}"
     "\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d40}-"
     "\\x{16d6c}\\x{18cff}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e4d0}-\\x{1e4eb}"
     "\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"lao",
     "\\p{sc:Lao}\\x{ece}"},
    {"laoo", "=lao"},
    {"latin",
     "\\p{sc:Latin}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{1df25}-\\x{1df2a}"},
    {"latn", "=latin"},
    {"letter", "=l"},
    {"letternumber",
     "\\p{Nl}"},
    {"lineseparator",
     "\\p{Zl}"},
    {"ll",
     "\\p{Ll}\\x{1c8a}\\x{a7cd}\\x{a7db}\\x{10d70}-\\x{10d85}\\x{1df25}-\\x{1df2a}"},
    {"lm",
     "\\p{Lm}\\x{10d4e}\\x{10d6f}\\x{16d40}-\\x{16d42}\\x{16d6b}-\\x{16d6c}\\x{1e030}-\\x{1e06d}\\x{1e4eb}"},
    {"lo",
     "\\p{Lo}\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d4d}\\x{10d4f}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}"
     "\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}\\x{11bc0}-"
     "\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-"
     "\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d43}-\\x{16d6a}\\x{18cff}\\x{1b132}\\x{1b155}\\x{1e4d0}-\\x{1e4ea}"
     "\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"lower",
     "\\p{Lowercase}\\x{10fc}\\x{1c8a}\\x{a7cd}\\x{a7db}\\x{a7f2}-\\x{a7f4}\\x{ab69}\\x{10d70}-\\x{10d85}\\x{1df25}-"
     "\\x{1df2a}\\x{1e030}-\\x{1e06d}"},
    {"lowercase", "=lower"},
    {"lowercaseletter", "=ll"},
    {"lt",
     "\\p{Lt}"},
    {"lu",
     "\\p{Lu}\\x{1c89}\\x{a7cb}-\\x{a7cc}\\x{a7da}\\x{a7dc}\\x{10d50}-\\x{10d65}"},
    {"m",
     "\\p{M}\\x{897}\\x{cf3}\\x{ece}\\x{10d69}-\\x{10d6d}\\x{10efc}-\\x{10eff}\\x{11241}\\x{113b8}-\\x{113c0}"
     "\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113d0}\\x{113d2}\\x{113e1}-\\x{113e2}\\x{11f00}-"
     "\\x{11f01}\\x{11f03}\\x{11f34}-\\x{11f3a}\\x{11f3e}-\\x{11f42}\\x{11f5a}\\x{13440}\\x{13447}-\\x{13455}"
     "\\x{1611e}-\\x{1612f}\\x{1e08f}\\x{1e4ec}-\\x{1e4ef}\\x{1e5ee}-\\x{1e5ef}"},
    {"malayalam",
     "\\p{sc:Malayalam}"},
    {"mark", "=m"},
    {"mathsymbol",
     "\\p{Sm}\\x{10d8e}-\\x{10d8f}"},
    {"mc",
     "\\p{Mc}\\x{cf3}\\x{113b8}-\\x{113ba}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113cd}\\x{113cf}"
     "\\x{1171e}\\x{11f03}\\x{11f34}-\\x{11f35}\\x{11f3e}-\\x{11f3f}\\x{11f41}\\x{1612a}-\\x{1612c}"},
    {"me", "=enclosingmark"},
    {"mlym", "=malayalam"},
    {"mn",
     "\\x{300}-\\x{36f}\\x{483}-\\x{487}\\x{591}-\\x{5bd}\\x{5bf}\\x{5c1}-\\x{5c2}\\x{5c4}-\\x{5c5}\\x{5c7}\\x{610}-"
     "\\x{61a}\\x{64b}-\\x{65f}\\x{670}\\x{6d6}-\\x{6dc}\\x{6df}-\\x{6e4}\\x{6e7}-\\x{6e8}\\x{6ea}-\\x{6ed}\\x{711}"
     "\\x{730}-\\x{74a}\\x{7a6}-\\x{7b0}\\x{7eb}-\\x{7f3}\\x{7fd}\\x{816}-\\x{819}\\x{81b}-\\x{823}\\x{825}-\\x{827}"
     "\\x{829}-\\x{82d}\\x{859}-\\x{85b}\\x{897}-\\x{89f}\\x{8ca}-\\x{8e1}\\x{8e3}-\\x{902}\\x{93a}\\x{93c}\\x{941}-"
     "\\x{948}\\x{94d}\\x{951}-\\x{957}\\x{962}-\\x{963}\\x{981}\\x{9bc}\\x{9c1}-\\x{9c4}\\x{9cd}\\x{9e2}-\\x{9e3}"
     "\\x{9fe}\\x{a01}-\\x{a02}\\x{a3c}\\x{a41}-\\x{a42}\\x{a47}-\\x{a48}\\x{a4b}-\\x{a4d}\\x{a51}\\x{a70}-\\x{a71}"
     "\\x{a75}\\x{a81}-\\x{a82}\\x{abc}\\x{ac1}-\\x{ac5}\\x{ac7}-\\x{ac8}\\x{acd}\\x{ae2}-\\x{ae3}\\x{afa}-\\x{aff}"
     "\\x{b01}\\x{b3c}\\x{b3f}\\x{b41}-\\x{b44}\\x{b4d}\\x{b55}-\\x{b56}\\x{b62}-\\x{b63}\\x{b82}\\x{bc0}\\x{bcd}"
     "\\x{c00}\\x{c04}\\x{c3c}\\x{c3e}-\\x{c40}\\x{c46}-\\x{c48}\\x{c4a}-\\x{c4d}\\x{c55}-\\x{c56}\\x{c62}-\\x{c63}"
     "\\x{c81}\\x{cbc}\\x{cbf}\\x{cc6}\\x{ccc}-\\x{ccd}\\x{ce2}-\\x{ce3}\\x{d00}-\\x{d01}\\x{d3b}-\\x{d3c}\\x{d41}-"
     "\\x{d44}\\x{d4d}\\x{d62}-\\x{d63}\\x{d81}\\x{dca}\\x{dd2}-\\x{dd4}\\x{dd6}\\x{e31}\\x{e34}-\\x{e3a}\\x{e47}-"
     "\\x{e4e}\\x{eb1}\\x{eb4}-\\x{ebc}\\x{ec8}-\\x{ece}\\x{f18}-\\x{f19}\\x{f35}\\x{f37}\\x{f39}\\x{f71}-\\x{f7e}"
     "\\x{f80}-\\x{f84}\\x{f86}-\\x{f87}\\x{f8d}-\\x{f97}\\x{f99}-\\x{fbc}\\x{fc6}\\x{102d}-\\x{1030}\\x{1032}-"
     "\\x{1037}\\x{1039}-\\x{103a}\\x{103d}-\\x{103e}\\x{1058}-\\x{1059}\\x{105e}-\\x{1060}\\x{1071}-\\x{1074}"
     "\\x{1082}\\x{1085}-\\x{1086}\\x{108d}\\x{109d}\\x{135d}-\\x{135f}\\x{1712}-\\x{1714}\\x{1732}-\\x{1733}"
     "\\x{1752}-\\x{1753}\\x{1772}-\\x{1773}\\x{17b4}-\\x{17b5}\\x{17b7}-\\x{17bd}\\x{17c6}\\x{17c9}-\\x{17d3}"
     "\\x{17dd}\\x{180b}-\\x{180d}\\x{180f}\\x{1885}-\\x{1886}\\x{18a9}\\x{1920}-\\x{1922}\\x{1927}-\\x{1928}"
     "\\x{1932}\\x{1939}-\\x{193b}\\x{1a17}-\\x{1a18}\\x{1a1b}\\x{1a56}\\x{1a58}-\\x{1a5e}\\x{1a60}\\x{1a62}"
     "\\x{1a65}-\\x{1a6c}\\x{1a73}-\\x{1a7c}\\x{1a7f}\\x{1ab0}-\\x{1abd}\\x{1abf}-\\x{1ace}\\x{1b00}-\\x{1b03}"
     "\\x{1b34}\\x{1b36}-\\x{1b3a}\\x{1b3c}\\x{1b42}\\x{1b6b}-\\x{1b73}\\x{1b80}-\\x{1b81}\\x{1ba2}-\\x{1ba5}"
     "\\x{1ba8}-\\x{1ba9}\\x{1bab}-\\x{1bad}\\x{1be6}\\x{1be8}-\\x{1be9}\\x{1bed}\\x{1bef}-\\x{1bf1}\\x{1c2c}-"
     "\\x{1c33}\\x{1c36}-\\x{1c37}\\x{1cd0}-\\x{1cd2}\\x{1cd4}-\\x{1ce0}\\x{1ce2}-\\x{1ce8}\\x{1ced}\\x{1cf4}"
     "\\x{1cf8}-\\x{1cf9}\\x{1dc0}-\\x{1dff}\\x{20d0}-\\x{20dc}\\x{20e1}\\x{20e5}-\\x{20f0}\\x{2cef}-\\x{2cf1}"
     "\\x{2d7f}\\x{2de0}-\\x{2dff}\\x{302a}-\\x{302d}\\x{3099}-\\x{309a}\\x{a66f}\\x{a674}-\\x{a67d}\\x{a69e}-"
     "\\x{a69f}\\x{a6f0}-\\x{a6f1}\\x{a802}\\x{a806}\\x{a80b}\\x{a825}-\\x{a826}\\x{a82c}\\x{a8c4}-\\x{a8c5}"
     "\\x{a8e0}-\\x{a8f1}\\x{a8ff}\\x{a926}-\\x{a92d}\\x{a947}-\\x{a951}\\x{a980}-\\x{a982}\\x{a9b3}\\x{a9b6}-"
     "\\x{a9b9}\\x{a9bc}-\\x{a9bd}\\x{a9e5}\\x{aa29}-\\x{aa2e}\\x{aa31}-\\x{aa32}\\x{aa35}-\\x{aa36}\\x{aa43}"
     "\\x{aa4c}\\x{aa7c}\\x{aab0}\\x{aab2}-\\x{aab4}\\x{aab7}-\\x{aab8}\\x{aabe}-\\x{aabf}\\x{aac1}\\x{aaec}-"
     "\\x{aaed}\\x{aaf6}\\x{abe5}\\x{abe8}\\x{abed}\\x{fb1e}\\x{fe00}-\\x{fe0f}\\x{fe20}-\\x{fe2f}\\x{101fd}"
     "\\x{102e0}\\x{10376}-\\x{1037a}\\x{10a01}-\\x{10a03}\\x{10a05}-\\x{10a06}\\x{10a0c}-\\x{10a0f}\\x{10a38}-"
     "\\x{10a3a}\\x{10a3f}\\x{10ae5}-\\x{10ae6}\\x{10d24}-\\x{10d27}\\x{10d69}-\\x{10d6d}\\x{10eab}-\\x{10eac}"
     "\\x{10efc}-\\x{10eff}\\x{10f46}-\\x{10f50}\\x{10f82}-\\x{10f85}\\x{11001}\\x{11038}-\\x{11046}\\x{11070}"
     "\\x{11073}-\\x{11074}\\x{1107f}-\\x{11081}\\x{110b3}-\\x{110b6}\\x{110b9}-\\x{110ba}\\x{110c2}\\x{11100}-"
     "\\x{11102}\\x{11127}-\\x{1112b}\\x{1112d}-\\x{11134}\\x{11173}\\x{11180}-\\x{11181}\\x{111b6}-\\x{111be}"
     "\\x{111c9}-\\x{111cc}\\x{111cf}\\x{1122f}-\\x{11231}\\x{11234}\\x{11236}-\\x{11237}\\x{1123e}\\x{11241}"
     "\\x{112df}\\x{112e3}-\\x{112ea}\\x{11300}-\\x{11301}\\x{1133b}-\\x{1133c}\\x{11340}\\x{11366}-\\x{1136c}"
     "\\x{11370}-\\x{11374}\\x{113bb}-\\x{113c0}\\x{113ce}\\x{113d0}\\x{113d2}\\x{113e1}-\\x{113e2}\\x{11438}-"
     "\\x{1143f}\\x{11442}-\\x{11444}\\x{11446}\\x{1145e}\\x{114b3}-\\x{114b8}\\x{114ba}\\x{114bf}-\\x{114c0}"
     "\\x{114c2}-\\x{114c3}\\x{115b2}-\\x{115b5}\\x{115bc}-\\x{115bd}\\x{115bf}-\\x{115c0}\\x{115dc}-\\x{115dd}"
     "\\x{11633}-\\x{1163a}\\x{1163d}\\x{1163f}-\\x{11640}\\x{116ab}\\x{116ad}\\x{116b0}-\\x{116b5}\\x{116b7}"
     "\\x{1171d}\\x{1171f}\\x{11722}-\\x{11725}\\x{11727}-\\x{1172b}\\x{1182f}-\\x{11837}\\x{11839}-\\x{1183a}"
     "\\x{1193b}-\\x{1193c}\\x{1193e}\\x{11943}\\x{119d4}-\\x{119d7}\\x{119da}-\\x{119db}\\x{119e0}\\x{11a01}-"
     "\\x{11a0a}\\x{11a33}-\\x{11a38}\\x{11a3b}-\\x{11a3e}\\x{11a47}\\x{11a51}-\\x{11a56}\\x{11a59}-\\x{11a5b}"
     "\\x{11a8a}-\\x{11a96}\\x{11a98}-\\x{11a99}\\x{11c30}-\\x{11c36}\\x{11c38}-\\x{11c3d}\\x{11c3f}\\x{11c92}-"
     "\\x{11ca7}\\x{11caa}-\\x{11cb0}\\x{11cb2}-\\x{11cb3}\\x{11cb5}-\\x{11cb6}\\x{11d31}-\\x{11d36}\\x{11d3a}"
     "\\x{11d3c}-\\x{11d3d}\\x{11d3f}-\\x{11d45}\\x{11d47}\\x{11d90}-\\x{11d91}\\x{11d95}\\x{11d97}\\x{11ef3}-"
     "\\x{11ef4}\\x{11f00}-\\x{11f01}\\x{11f36}-\\x{11f3a}\\x{11f40}\\x{11f42}\\x{11f5a}\\x{13440}\\x{13447}-"
     "\\x{13455}\\x{1611e}-\\x{16129}\\x{1612d}-\\x{1612f}\\x{16af0}-\\x{16af4}\\x{16b30}-\\x{16b36}\\x{16f4f}"
     "\\x{16f8f}-\\x{16f92}\\x{16fe4}\\x{1bc9d}-\\x{1bc9e}\\x{1cf00}-\\x{1cf2d}\\x{1cf30}-\\x{1cf46}\\x{1d167}-"
     "\\x{1d169}\\x{1d17b}-\\x{1d182}\\x{1d185}-\\x{1d18b}\\x{1d1aa}-\\x{1d1ad}\\x{1d242}-\\x{1d244}\\x{1da00}-"
     "\\x{1da36}\\x{1da3b}-\\x{1da6c}\\x{1da75}\\x{1da84}\\x{1da9b}-\\x{1da9f}\\x{1daa1}-\\x{1daaf}\\x{1e000}-"
     "\\x{1e006}\\x{1e008}-\\x{1e018}\\x{1e01b}-\\x{1e021}\\x{1e023}-\\x{1e024}\\x{1e026}-\\x{1e02a}\\x{1e08f}"
     "\\x{1e130}-\\x{1e136}\\x{1e2ae}\\x{1e2ec}-\\x{1e2ef}\\x{1e4ec}-\\x{1e4ef}\\x{1e5ee}-\\x{1e5ef}\\x{1e8d0}-"
     "\\x{1e8d6}\\x{1e944}-\\x{1e94a}\\x{e0100}-\\x{e01ef}"},
    {"modifierletter", "=lm"},
    {"modifiersymbol",
     "\\p{Sk}"},
    {"mong",
     "\\p{sc:Mongolian}"},
    {"mongolian", "=mong"},
    {"myanmar",
     "\\p{sc:Myanmar}\\x{116d0}-\\x{116e3}"},
    {"mymr", "=myanmar"},
    {"n",
     "\\p{N}\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}\\x{16130}-"
     "\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-"
     "\\x{1e5fa}"},
    {"nd", "=decimalnumber"},
    {"nl", "=letternumber"},
    {"no",
     "\\p{No}\\x{1d2c0}-\\x{1d2d3}"},
    {"nonspacingmark", "=mn"},
    {"number", "=n"},
    {"openpunctuation",
     "\\p{Ps}"},
    {"otherletter", "=lo"},
    {"othernumber", "=no"},
    {"otherpunctuation",
     "\\p{Po}\\x{1b4e}-\\x{1b4f}\\x{1b7f}\\x{113d4}-\\x{113d5}\\x{113d7}-\\x{113d8}\\x{11b00}-\\x{11b09}\\x{11be1}"
     "\\x{11f43}-\\x{11f4f}\\x{16d6d}-\\x{16d6f}\\x{1e5ff}"},
    {"othersymbol",
     "\\p{So}\\x{2427}-\\x{2429}\\x{2ffc}-\\x{2fff}\\x{31e4}-\\x{31e5}\\x{31ef}\\x{1cc00}-\\x{1ccef}\\x{1cd00}-"
     "\\x{1ceb3}\\x{1f6dc}\\x{1f774}-\\x{1f776}\\x{1f77b}-\\x{1f77f}\\x{1f7d9}\\x{1f8b2}-\\x{1f8bb}\\x{1f8c0}-"
     "\\x{1f8c1}\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}\\x{1fa8f}\\x{1faad}-\\x{1faaf}\\x{1fabb}-\\x{1fabf}"
     "\\x{1fac6}\\x{1face}-\\x{1facf}\\x{1fada}-\\x{1fadc}\\x{1fadf}\\x{1fae8}-\\x{1fae9}\\x{1faf7}-\\x{1faf8}"
     "\\x{1fbcb}-\\x{1fbef}"},
    {"p",
     "\\p{P}\\x{1b4e}-\\x{1b4f}\\x{1b7f}\\x{10d6e}\\x{113d4}-\\x{113d5}\\x{113d7}-\\x{113d8}\\x{11b00}-\\x{11b09}"
     "\\x{11be1}\\x{11f43}-\\x{11f4f}\\x{16d6d}-\\x{16d6f}\\x{1e5ff}"},
    {"paragraphseparator",
     "\\p{Zp}"},
    {"pc", "=connectorpunctuation"},
    {"pd", "=dashpunctuation"},
    {"pe", "=closepunctuation"},
    {"pf", "=finalpunctuation"},
    {"pi", "=initialpunctuation"},
    {"po", "=otherpunctuation"},
    {"privateuse", "=co"},
    {"ps", "=openpunctuation"},
    {"punctuation", "=p"},
    {"s",
     "\\p{S}\\x{2427}-\\x{2429}\\x{2ffc}-\\x{2fff}\\x{31e4}-\\x{31e5}\\x{31ef}\\x{10d8e}-\\x{10d8f}\\x{1cc00}-"
     "\\x{1ccef}\\x{1cd00}-\\x{1ceb3}\\x{1f6dc}\\x{1f774}-\\x{1f776}\\x{1f77b}-\\x{1f77f}\\x{1f7d9}\\x{1f8b2}-"
     "\\x{1f8bb}\\x{1f8c0}-\\x{1f8c1}\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}\\x{1fa8f}\\x{1faad}-\\x{1faaf}"
     "\\x{1fabb}-\\x{1fabf}\\x{1fac6}\\x{1face}-\\x{1facf}\\x{1fada}-\\x{1fadc}\\x{1fadf}\\x{1fae8}-\\x{1fae9}"
     "\\x{1faf7}-\\x{1faf8}\\x{1fbcb}-\\x{1fbef}"},
    {"sc", "=currencysymbol"},
    {"separator",
     "\\p{Z}"},
    {"single word",
     "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{897}\\x{cf3}\\x{ece}\\x{1c89}-\\x{1c8a}\\x{200c}-\\x{200d}\\x{a7cb}-"
     "\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d40}-\\x{10d65}\\x{10d69}-\\x{10d6d}\\x{10d6f}-"
     "\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{10efc}-\\x{10eff}\\x{1123f}-\\x{11241}\\x{11380}-\\x{11389}\\x{1138b}"
     "\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-"
     "\\x{113d3}\\x{113e1}-\\x{113e2}\\x{116d0}-\\x{116e3}\\x{11bc0}-\\x{11be0}\\x{11bf0}-\\x{11bf9}\\x{11f00}-"
     "\\x{11f10}\\x{11f12}-\\x{11f3a}\\x{11f3e}-\\x{11f42}\\x{11f50}-\\x{11f5a}\\x{1342f}\\x{13440}-\\x{13455}"
     "\\x{13460}-\\x{143fa}\\x{16100}-\\x{16139}\\x{16d40}-\\x{16d6c}\\x{16d70}-\\x{16d79}\\x{18cff}\\x{1b132}"
     "\\x{1b155}\\x{1ccf0}-\\x{1ccf9}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e08f}\\x{1e4d0}-\\x{1e4f9}"
     "\\x{1e5d0}-\\x{1e5fa}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"sinh",
     "\\p{sc:Sinhala}"},
    {"sinhala", "=sinh"},
    {"sk", "=modifiersymbol"},
    {"sm", "=mathsymbol"},
    {"so", "=othersymbol"},
    {"space",
     "\\p{White_Space}"},
    {"spaceseparator",
     "\\p{Zs}"},
    {"spacingmark", "=mc"},
    {"symbol", "=s"},
    {"tamil",
     "\\p{sc:Tamil}"},
    {"taml", "=tamil"},
    {"telu",
     "\\p{sc:Telugu}"},
    {"telugu", "=telu"},
    {"thai",
     "\\p{sc:Thai}"},
    {"tibetan",
     "\\p{sc:Tibetan}"},
    {"tibt", "=tibetan"},
    {"titlecaseletter", "=lt"},
    {"upper",
     "\\p{Uppercase}\\x{1c89}\\x{a7cb}-\\x{a7cc}\\x{a7da}\\x{a7dc}\\x{10d50}-\\x{10d65}"},
    {"uppercase", "=upper"},
    {"uppercaseletter", "=lu"},
    {"whitespace", "=space"},
    {"z", "=separator"},
    {"zl", "=lineseparator"},
    {"zp", "=paragraphseparator"},
    {"zs", "=spaceseparator"},
    {"zyyy", "=common"},
    {NULL, NULL}};

const int32_t mx_not_normalized[][2] = {
    {0x558, 0x558}, {0x58b, 0x58c}, {0x5c8, 0x5c9}, {0x7fd, 0x7fd}, {0x897, 0x89f}, {0x8ca, 0x8d3}, {0x9fe, 0x9fe},
    {0xc3c, 0xc3c}, {0xd3b, 0xd3c}, {0xeba, 0xeba}, {0x1715, 0x1715}, {0x1abf, 0x1af0}, {0x1df6, 0x1dfa},
    {0x209d, 0x209f}, {0x32ff, 0x32ff}, {0xa7f1, 0xa7f4}, {0xa82c, 0xa82c}, {0xab69, 0xab69}, {0x105c9, 0x105c9},
    {0x105d2, 0x105d2}, {0x105da, 0x105da}, {0x105e4, 0x105e4}, {0x10781, 0x10785}, {0x10787, 0x107b0},
    {0x107b2, 0x107bf}, {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac}, {0x10ecb, 0x10ecf},
    {0x10ef0, 0x10efb}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
    {0x1133b, 0x1133b}, {0x11382, 0x11385}, {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x11391},
    {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113c8}, {0x113ce, 0x113d0}, {0x1145e, 0x1145e},
    {0x11839, 0x1183a}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943},
    {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x1611e, 0x1611e}, {0x16121, 0x16129},
    {0x1612f, 0x1612f}, {0x16d63, 0x16d63}, {0x16d67, 0x16d6a}, {0x16ff0, 0x16ff1}, {0x1b123, 0x1b126},
    {0x1ccd6, 0x1ccf9}, {0x1d127, 0x1d128}, {0x1d250, 0x1d252}, {0x1d25b, 0x1d25c}, {0x1d25f, 0x1d25f},
    {0x1d280, 0x1d281}, {0x1d6a6, 0x1d6a6}, {0x1df95, 0x1df95}, {0x1dfcd, 0x1dfff}, {0x1e030, 0x1e06d},
    {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
    {0x1e5ee, 0x1e5ef}, {0x1e6e3, 0x1e6e3}, {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef}, {0x1e6f5, 0x1e6f5},
    {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9},
    {-1, -1}};
