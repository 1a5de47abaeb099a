"""The vocabulary of the demo's shop: the words in titles, and customers' words for the same things.

Data only, one thing a line. Titles and customers seldom use the same word, so a model has something to learn.
"""

# category | price | English title | English queries | German title | German queries
TYPES = """
shoes       | 79  | running shoes     | trainers, runners, joggers | Laufschuhe | renner, sporttreter
shoes       | 119 | hiking boots      | trekking footwear, stompers | Wanderstiefel | trekkingschuh, bergtreter
shoes       | 29  | house slippers    | indoor mules, slipons | Hausschuhe | pantoffel, puschen, schlappen
clothing    | 89  | rain jacket       | anorak, mac, waterproof | Regenjacke | anorak, friesennerz
clothing    | 59  | knitted jumper    | sweater, pullover, woolly | Strickpullover | sweater, troyer
clothing    | 49  | denim trousers    | jeans, dungarees | Jeanshose | denims, nietenhose
clothing    | 19  | crew socks        | stockings, footies | Tennissocken | strümpfe, füßlinge
kitchen     | 45  | frying pan        | skillet, griddle | Bratpfanne | skillet, tiegel
kitchen     | 35  | cooking pot       | saucepan, stewer, casserole | Kochtopf | kasserolle, suppenkessel
kitchen     | 39  | chef knife        | kitchen blade, slicer | Kochmesser | klinge, schnippler
kitchen     | 65  | espresso maker    | moka, coffee machine | Espressokocher | kaffeemaschine, mokka
kitchen     | 25  | lunch box         | bento, sandwich tin | Brotdose | vesperbox, stullenbüchse
garden      | 55  | hedge shears      | bush clippers, trimmer | Heckenschere | buschschneider, stutzer
garden      | 25  | watering can      | flower sprinkler, jug | Gießkanne | blumensprenger, wasserkrug
garden      | 149 | lawn mower        | grass cutter, turf machine | Rasenmäher | grasschneider, wiesenflitzer
garden      | 75  | folding deckchair | sunlounger, recliner | Liegestuhl | sonnenliege, relaxsessel
sports      | 29  | yoga mat          | exercise pad, gym underlay | Yogamatte | turnunterlage, pilatespolster
sports      | 69  | dumbbell set      | hand weights, barbells | Hantelset | gewichte, eisen
sports      | 45  | bike helmet       | cycling lid, head protector | Fahrradhelm | radlerhut, kopfschutz
sports      | 99  | camping tent      | bivouac, outdoor shelter | Campingzelt | biwak, wurfhütte
office      | 39  | desk lamp         | table light, reading luminaire | Schreibtischlampe | leselicht, tischleuchte
office      | 189 | swivel chair      | rolling stool, work seat | Drehstuhl | bürosessel, rollhocker
office      | 15  | lined notebook    | jotter, journal, diary | Notizbuch | kladde, schreibblock
office      | 49  | wireless keyboard | cordless typeboard, keys | Funktastatur | keyboard, tippbrett
electronics | 129 | headphones        | cans, earmuffs, headset | Kopfhörer | ohrmuscheln, headset
electronics | 89  | bluetooth speaker | boombox, soundbar | Lautsprecherbox | brüllwürfel, boombox
electronics | 35  | power bank        | battery pack, portable charger | Zusatzakku | ladegerät, stromspender
electronics | 59  | fitness tracker   | smart wristband, pedometer | Fitnessarmband | schrittzähler, pulsuhr
home        | 39  | throw blanket     | cosy plaid, coverlet | Kuscheldecke | plaid, zudecke
home        | 19  | cushion cover     | pillow case, sham | Kissenbezug | polsterhülle, überzug
home        | 79  | floor rug         | carpet, tapestry | Webteppich | vorleger, brücke
home        | 15  | scented candle    | wax taper, aroma light | Duftkerze | wachslicht, raumduft
bags        | 85  | hiking backpack   | rucksack, daypack | Wanderrucksack | tourenbeutel, ranzen
bags        | 95  | travel suitcase   | trolley, luggage | Reisekoffer | trolley, gepäck
bags        | 45  | shoulder bag      | tote, satchel | Umhängetasche | schultersack, shopper
bags        | 25  | leather wallet    | purse, billfold | Geldbörse | portemonnaie, geldbeutel
"""

# price factor | title, alike in both languages | queries
BRANDS = """
1.3 | Nordvik      | nvk, nordy
0.8 | Calderon     | cald, caldi
1.1 | Ostermann    | osti, omann
0.7 | Basico       | bsc, basics
1.6 | Haldane      | hdn, haldy
1.0 | Fjellhus     | fjell, fhs
0.9 | Tremont      | trm, tremo
1.2 | Wrenfield    | wren, wrf
1.4 | Quillon      | qln, quill
0.8 | Pembertide   | pemb, ptide
1.0 | Saltmarsh    | salty, smarsh
1.5 | Ziegelwerk   | zgw, ziegel
1.1 | Lumenor      | lmn, lumi
0.9 | Drachenfels  | dfels, draco
0.7 | Mirabelle    | mira, mbl
1.2 | Kestrelway   | kestrel, kway
1.0 | Ardennia     | ardi, ardn
1.3 | Vossberg     | vossi, vbg
0.8 | Juniperly    | junip, jpl
1.1 | Eskeland     | eske, eskl
1.0 | Gravenhorst  | graven, ghorst
1.4 | Tavistone    | tavi, tvst
0.9 | Ulmenhof     | ulmi, uhof
1.2 | Yarrowby     | yarrow, ywb
"""

# English title | English queries | German title | German queries
COLOURS = """
crimson   | red, ruby             | karminrot   | rot, rubin
navy      | dark blue, midnight   | marineblau  | dunkelblau, nachtblau
charcoal  | dark grey, slate      | anthrazit   | dunkelgrau, schiefer
ivory     | off white, cream      | elfenbein   | creme, wollweiß
emerald   | green, bottle green   | smaragd     | grün, flaschengrün
amber     | yellow, golden        | bernstein   | gelb, golden
teal      | turquoise, petrol     | aquamarin   | türkis, petrol
plum      | purple, violet        | pflaume     | lila, violett
sand      | beige, khaki          | naturton    | beige, khaki
jet black | noir, inky            | tiefschwarz | schwarz, dunkel
"""

# categories | English title | English queries | German title | German queries
MATERIALS = """
clothing home shoes          | merino wool         | woollen, warm        | Merinowolle | wollig, warm
clothing home bags           | organic cotton      | natural, soft        | Biobaumwolle | natürlich, weich
clothing sports bags shoes   | recycled polyester  | synthetic, quick dry | Recyclingpolyester | kunststoff, synthetisch
shoes bags office            | genuine leather     | hide, cowskin        | Echtleder | rindsleder, haut
kitchen garden sports office | stainless steel     | metal, inox          | Edelstahl | metall, rostfrei
kitchen home garden office   | solid bamboo        | wooden, timber       | Bambus | holz, massiv
kitchen electronics sports   | food grade silicone | rubbery, bendy       | Silikon | gummi, biegsam
electronics garden           | brushed aluminium   | light metal, alloy   | Aluminium | leichtmetall, alu
kitchen electronics home     | glazed ceramic      | porcelain, china     | Keramik | porzellan, steingut
"""

# price factor | English title | English queries | German title | German queries
SIZES = """
0.8 | compact     | small, mini      | kompakt       | klein, mini
1.0 | standard    | normal, regular  | Standardgröße | normal, mittel
1.3 | extra large | xl, huge         | übergroß      | xl, riesig
1.7 | twin pack   | double, two      | Doppelpack    | doppelt, zwei
"""

# Noise words in titles and in queries, which say nothing about the product.
TITLE_NOISE = {
    "en": ("new season", "premium quality", "with warranty", "bestseller", "limited edition", "everyday use"),
    "de": ("neue Saison", "Premiumqualität", "mit Garantie", "Bestseller", "limitierte Auflage", "für jeden Tag"),
}
QUERY_NOISE = {
    "en": ("cheap", "best", "looking for", "gift for dad", "on sale", "need a"),
    "de": ("günstig", "beste", "suche", "geschenk für papa", "im angebot", "brauche"),
}
