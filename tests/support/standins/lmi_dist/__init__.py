"""A stand-in for lmi_dist, based only on the calls that LMI 0.30 to 0.32 make.

Where LMI's calls do not say what is allowed, it allows only what they do. The model answers with the prompt and then ends;
without an end it begins again. Sampled tokens are shifted by the seed, and an adapter adds its number to each.
"""
