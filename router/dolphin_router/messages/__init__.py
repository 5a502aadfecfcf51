"""What is read of the JSON that clients and engines send, and what is written of requests.

msgspec fills these classes by the types of their fields, which mypyc would not keep: these modules are never compiled.
"""
