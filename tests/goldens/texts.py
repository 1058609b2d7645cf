"""English that the tokenizers here are trained on."""

ENGLISH = """\
how to grow tomatoes in a small garden and when to water the plants in the summer heat, where to find the best running
shoes for flat feet, what is the weather in the north this weekend, the cheapest train from the city to the sea, how long
to boil an egg, how to learn the guitar in thirty days, is there a pharmacy near the station that is open on Sunday, why
is the sky blue, the name of the song in the film about the lighthouse, chocolate cake without eggs, how to repair
a leaking tap, opening hours of the city library, the difference between weather and climate, and how to write a letter.
"""
