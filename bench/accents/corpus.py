#!/usr/bin/env python3
"""Makes a French corpus of searches for places and what is there: `cinéma béziers`, `météo saint-étienne`.

usage: corpus.py COMMUNES.json OUT

Communes are drawn by their inhabitants, and what is looked for by a Zipf law, seeded. Everything is in small letters and
with all of its accents. OUT gets corpus/train.txt and corpus/valid.txt, and as queries with accents, 500 each,
queries/seen.txt from the corpus, drawn by frequency, and queries/unseen.txt, which the corpus lacks.
"""

import json
import random
import sys
import unicodedata
from pathlib import Path

LINES = 50_000
QUERIES = 500
SEED = 20

WANTED = """météo
mairie
hôtel
cinéma
restaurant
piscine
location appartement
pharmacie de garde
médecin généraliste
déchèterie
horaires déchèterie
médiathèque
école maternelle
école élémentaire
collège
lycée
bibliothèque
théâtre
marché
marché de noël
gare
hôpital
clinique vétérinaire
garage
boulangerie
pâtisserie
crêperie
pizzeria
brasserie
camping
gîte
chambre d'hôtes
musée
château
église
randonnée
vélo
location vélo
location voiture
crèche
centre aéré
préfecture
sous-préfecture
impôts
trésor public
bureau de poste
supermarché
hypermarché
dépôt-vente
friterie
fête foraine
feu d'artifice
brocante
vide-grenier
dentiste
kinésithérapeute
ostéopathe
orthophoniste
opticien
notaire
avocat
géomètre
plombier
électricien
chauffagiste
élagage
paysagiste
pépinière
maraîcher
boucherie
traiteur
épicerie
coiffeur
esthéticienne
fleuriste
bijouterie
contrôle technique
auto-école
université
résidence étudiante
code postal
plan
itinéraire
population
qualité de l'air
coupure d'électricité""".splitlines()


def is_accented(text: str) -> bool:
    return unicodedata.normalize("NFD", text) != text


def inhabitants(communes: Path) -> dict[str, int]:
    """Of each commune's name; communes of the same name together."""
    found: dict[str, int] = {}
    for commune in json.loads(communes.read_text(encoding="utf-8")):
        if commune["type"] == "commune-actuelle":
            name = commune["nom"].lower().replace("œ", "oe")
            found[name] = found.get(name, 0) + commune.get("population", 0)
    return found


def draw(rng: random.Random, communes: dict[str, int], count: int) -> list[str]:
    """Searches; most name what is wanted first. The power lets small places come up."""
    places = rng.choices(list(communes), [people**0.75 for people in communes.values()], k=count)
    wanted = rng.choices(WANTED, [1 / (rank + 5) for rank in range(len(WANTED))], k=count)
    return [f"{what} {place}" if rng.random() < 0.7 else f"{place} {what}" for what, place in zip(wanted, places)]


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main() -> None:
    communes, out = inhabitants(Path(sys.argv[1])), Path(sys.argv[2])
    rng = random.Random(SEED)
    lines = draw(rng, communes, LINES)
    known = set(lines)
    accented = [line for line in dict.fromkeys(lines) if is_accented(line)]
    new = [line for line in dict.fromkeys(draw(rng, communes, LINES)) if is_accented(line) and line not in known]
    write(out / "corpus/valid.txt", lines[: LINES // 50])
    write(out / "corpus/train.txt", lines[LINES // 50 :])
    write(out / "queries/seen.txt", accented[:QUERIES])
    write(out / "queries/unseen.txt", new[:QUERIES])


if __name__ == "__main__":
    main()
